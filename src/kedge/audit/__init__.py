"""The conformance audit: every method against answers obtained another way, on the code that runs."""
