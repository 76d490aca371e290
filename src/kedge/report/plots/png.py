"""Make matplotlib figures and encode them as PNG. Needs the extra `plot`."""

from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Literal

from kedge.core.errors import RequestError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = 255  # of the palette; plots have few colors


def require_matplotlib(otherwise: str = "The page needs no matplotlib: --html FILE.") -> None:
    """Raise if matplotlib is missing; the sentence `otherwise` names an alternative that needs none."""
    if find_spec("matplotlib") is None:
        raise RequestError(
            f"a PNG needs matplotlib, which is not installed: pip install 'kedge[plot]'. {otherwise}"
        )


def new_figure(width: float, height: float, dpi: int = 120, constrained: bool = True) -> "Figure":
    """An empty figure of `width` × `height` inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layout: Literal["constrained"] | None = "constrained" if constrained else None
    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png(figure: "Figure") -> bytes:
    """The figure as the content of a PNG file with a palette, which is smaller."""
    from PIL import Image

    full, file = BytesIO(), BytesIO()
    figure.savefig(full, format="png")
    quantized = Image.open(full).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    quantized.save(file, "png", optimize=True)
    return file.getvalue()
