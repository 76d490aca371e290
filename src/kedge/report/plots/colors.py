"""The colors of plots and pages."""

INK, DIM, LINE = "#1c2128", "#5c6672", "#e4e8ec"  # text, secondary text, thin lines

# For lines of methods; distinguishable also for the color-blind (Okabe and Ito).
METHODS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")

# For fractions from 0 to 1: a single hue from light to dark, readable for the color-blind and in print.
SCALE = ("#cfe1f2", "#a6cde4", "#72b2d8", "#4090c5", "#1b6aaf", "#08488f", "#062a57")
GAMMA = 0.5  # the position on the scale is the square root of the fraction, so that small ones differ


def shade(fraction: float) -> str:
    """The color of a fraction from 0 to 1, interpolated on SCALE."""
    position = min(max(fraction, 0.0), 1.0) ** GAMMA * (len(SCALE) - 1)
    low = min(int(position), len(SCALE) - 2)
    below, above = (bytes.fromhex(SCALE[index][1:]) for index in (low, low + 1))
    mixed = (round(a + (b - a) * (position - low)) for a, b in zip(below, above, strict=True))
    return "#" + bytes(mixed).hex()
