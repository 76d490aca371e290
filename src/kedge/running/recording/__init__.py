"""What a run records: evaluations, costs, history, checkpoints."""
