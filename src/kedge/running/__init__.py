"""Run experiments: the loop over rounds, folders and checkpoints, history, packs of several runs."""
