"""The files of a run: its folder, checkpoints, identity, and the user's own code."""
