"""Tables and plots: from the files of runs, never from live objects."""
