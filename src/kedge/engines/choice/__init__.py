"""The choice of an engine: trial, capacity, and errors of modules that an engine cannot run."""
