"""A Flower app: a server with FedAvg, and clients that train nothing."""
