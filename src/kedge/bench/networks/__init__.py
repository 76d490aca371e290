"""The standard CNN and ResNets with 1, 10 and 100 clients: speed, memory and kernels of each way to train."""
