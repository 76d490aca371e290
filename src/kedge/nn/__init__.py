"""nn.Modules as pure functions: layers that draw from a key, ignore padding, and run fast under vmap."""
