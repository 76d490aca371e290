"""The picture of who holds what as one page: SVG with values to point at, no network, no other file."""

from collections.abc import Sequence
from html import escape

from kedge.report.plots.shapes import Circle, Drawing, Shape, Text

STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1c2128; font: 14px/1.5 system-ui, sans-serif; }
main { width: fit-content; max-width: 100%; box-sizing: border-box; margin: 0 auto; padding: 1rem 1.5rem; }
svg { display: block; }
svg text { font-family: system-ui, sans-serif; dominant-baseline: central; }
svg rect { shape-rendering: crispEdges; }
svg :is(rect, circle):hover { stroke: #d55e00; stroke-width: 2px; }
svg .still { pointer-events: none; }
.scroll { overflow-x: auto; }
p { margin: .2rem 0 .2rem 64px; max-width: 48rem; font-size: 13px; color: #5c6672; }
"""


def page(drawing: Drawing, lines: Sequence[str]) -> str:
    """The page: the picture, and under it what is to be said of it."""
    shapes = "\n".join(element(shape) for shape in drawing.shapes)
    said = "\n".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{escape(drawing.name)}</title>
<style>{STYLE}</style>
</head>
<body><main>
<div class="scroll">
<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" height="{drawing.height}"
 viewBox="0 0 {drawing.width} {drawing.height}" role="img" aria-label="{escape(drawing.name)}">
{shapes}
</svg>
</div>
{said}
</main></body>
</html>
"""


def element(shape: Shape) -> str:
    """A shape in SVG."""
    if isinstance(shape, Text):
        weight = ' font-weight="600"' if shape.bold else ""
        turned = f' transform="rotate(-90 {shape.x:g} {shape.y:g})"' if shape.upright else ""
        return (
            f'<text x="{shape.x:g}" y="{shape.y:g}" font-size="{shape.size:g}" text-anchor="{shape.anchor}" '
            f'fill="{shape.color}"{weight}{turned}>{escape(shape.text)}</text>'
        )
    said = f"<title>{escape(shape.title)}</title>" if shape.title else ""
    still = "" if said else ' class="still"'
    if isinstance(shape, Circle):
        inner = (
            f'<circle cx="{shape.x:g}" cy="{shape.y:g}" r="{shape.radius:.2f}" fill="{shape.color}"{still}>'
        )
        return f"{inner}{said}</circle>"
    size = f'width="{shape.width:.6g}" height="{shape.height:.6g}"'
    return f'<rect x="{shape.x:.6g}" y="{shape.y:.6g}" {size} fill="{shape.color}"{still}>{said}</rect>'
