"""A federation over the network: the programs of the server and of a client."""
