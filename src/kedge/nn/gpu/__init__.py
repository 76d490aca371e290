"""Convolution and pooling of many clients at once on a GPU, as Triton programs."""
