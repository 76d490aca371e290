"""Circles, boxes and texts in pixels, y downwards: what a picture is made of before PNG or HTML draws it."""

from dataclasses import dataclass
from typing import Literal

INK, DIM, LINE = "#1c2128", "#5c6672", "#e4e8ec"

# One hue, ever darker: read by lightness, so also by the color-blind and in print.
SCALE = ("#cfe1f2", "#a6cde4", "#72b2d8", "#4090c5", "#1b6aaf", "#08488f", "#062a57")


@dataclass(frozen=True)
class Circle:
    """A disc around (x, y); its title shows when it is pointed at."""

    x: float
    y: float
    radius: float
    color: str
    title: str = ""


@dataclass(frozen=True)
class Box:
    """A filled rectangle from (x, y) to the right and down; its title shows when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    color: str
    title: str = ""


@dataclass(frozen=True)
class Text:
    """A line of text; y is its middle, x where it is anchored."""

    x: float
    y: float
    text: str
    size: float = 11
    anchor: Literal["start", "middle", "end"] = "middle"
    color: str = INK
    bold: bool = False
    upright: bool = False  # read from below


Shape = Circle | Box | Text


@dataclass(frozen=True)
class Drawing:
    """Everything on a canvas of so many pixels; later shapes cover earlier ones, texts cover all."""

    width: int
    height: int
    name: str
    shapes: tuple[Shape, ...]


def shade(share: float) -> str:
    """The color of a share: √share on the scale, so that small ones can be told apart."""
    place = min(max(share, 0.0), 1.0) ** 0.5 * (len(SCALE) - 1)
    low = min(int(place), len(SCALE) - 2)
    below, above = (bytes.fromhex(SCALE[at][1:]) for at in (low, low + 1))
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(below, above, strict=True))
    return "#" + bytes(mixed).hex()
