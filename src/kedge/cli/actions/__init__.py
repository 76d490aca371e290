"""The work of the commands: training, tables, folders. These modules load PyTorch."""
