"""Options and help texts, one file a command. No module here loads PyTorch."""
