"""From a configuration to a finished run: the loop, who takes part, history, checkpoints."""
