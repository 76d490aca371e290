"""A federation of machines: orders and sums as messages over Flower's SuperLink."""
