"""A drawing as a PNG. Needs the extra `plot`."""

from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from kedge.core.errors import RequestError
from kedge.report.plots.shapes import Box, Circle, Drawing, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PIXELS = 2  # of the PNG for one of the drawing, in each direction
COLORS = 255
SIDES = {"start": "left", "middle": "center", "end": "right"}


def require_matplotlib(otherwise: str = "The page does without: --html FILE.") -> None:
    """Refuse before any work where nothing can be drawn; `otherwise` says what does without."""
    if find_spec("matplotlib") is None:
        raise RequestError(
            f"a PNG needs matplotlib, which is not installed: pip install 'kedge[plot]'. {otherwise}"
        )


def png(drawing: Drawing) -> bytes:
    """The drawing's pixels, as a file has them; a palette, since drawings have few colors."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle as Disc
    from matplotlib.patches import Rectangle

    # At 72 dots an inch a point is a pixel of the drawing.
    figure = Figure(figsize=(drawing.width / 72, drawing.height / 72), dpi=72 * PIXELS)
    FigureCanvasAgg(figure)
    plane = figure.add_axes((0, 0, 1, 1), xlim=(0, drawing.width), ylim=(drawing.height, 0))
    plane.set_axis_off()
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box)]
    rectangles = [Rectangle((b.x, b.y), b.width, b.height) for b in boxes]
    # Smoothed edges would show as seams between neighbors.
    plane.add_collection(
        PatchCollection(rectangles, facecolors=[b.color for b in boxes], linewidths=0, antialiaseds=False)
    )
    circles = [shape for shape in drawing.shapes if isinstance(shape, Circle)]
    discs = [Disc((c.x, c.y), c.radius) for c in circles]
    plane.add_collection(PatchCollection(discs, facecolors=[c.color for c in circles], linewidths=0))
    for shape in drawing.shapes:
        if isinstance(shape, Text):
            plane.text(
                shape.x, shape.y, shape.text, fontsize=shape.size, color=shape.color,
                ha=SIDES[shape.anchor], va="center" if shape.upright else "center_baseline",
                rotation=90 if shape.upright else 0, weight="bold" if shape.bold else "normal",
                parse_math=False,
            )  # fmt: skip
    return saved(figure)


def saved(figure: "Figure") -> bytes:
    """A figure's file, with a palette."""
    from PIL import Image

    full, file = BytesIO(), BytesIO()
    figure.savefig(full, format="png")
    few = Image.open(full).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    few.save(file, "png", optimize=True)
    return file.getvalue()
