"""The cost of training: parameters updated, multiply-adds, bytes sent."""
