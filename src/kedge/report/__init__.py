"""Tables, plots and pages, made from the files of runs only."""
