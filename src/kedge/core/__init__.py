"""The mathematics: pure functions of tensors, independent of devices and engines."""
