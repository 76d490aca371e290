"""The records of a run: evaluations, costs, history, checkpoints."""
