"""The cost phases of runs as a picture, from their histories alone: an area is a cost.

One row a run, one column a kind of cost. A phase is a box as wide as its rounds and as high as what one of
them costs on average, all rows of a column to one scale; of bytes, what goes up stands on what goes down.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kedge.report.costs import History, phases, short
from kedge.report.plots.curves import names
from kedge.report.plots.png import png
from kedge.report.plots.shapes import DIM, LINE, Box, Drawing, Shape, Text
from kedge.report.runs import Run, grouped

TOP, LEFT, RIGHT = 74, 16, 20
WIDE, HIGH = 230, 70  # of a panel
ACROSS, DOWN, HEAD = 30, 30, 34  # between panels; for the texts above each
ROOM = 30  # of a number under the axis
FULL, PALE = "#1b6aaf", "#a6cde4"
EDGE = "#ffffff"  # between phases

Phase = Mapping[str, Any]


class Kind(NamedTuple):
    """A column: what is drawn, and the parts of its boxes from below."""

    name: str
    parts: tuple[tuple[str, str], ...]  # key and color
    unit: str = ""

    def per_round(self, phase: Phase) -> float:
        """What a round of the phase costs, on average."""
        return float(sum(phase[key] for key, _ in self.parts)) / int(phase["rounds"])


KINDS = (
    Kind("parameters updated", (("updates", FULL),)),
    Kind("multiply-adds", (("macs", FULL),)),
    Kind("bytes down, and up on top", (("bytes_down", FULL), ("bytes_up", PALE)), "B"),
)


def drawing(runs: Sequence[tuple[str, History]], title: str = "what rounds cost") -> Drawing:
    """The phases of runs, each with its name."""
    found = [(name, phases(history)) for name, history in runs]
    rounds = max((own[-1]["last_round"] for _, own in found if own), default=1)
    shapes: list[Shape] = [Text(LEFT, 18, title, 14, "start", bold=True)]
    for column, kind in enumerate(KINDS):
        x = LEFT + column * (WIDE + ACROSS)
        most = max((kind.per_round(phase) for _, own in found for phase in own), default=0.0)
        shapes.append(Text(x, 42, kind.name, 12, "start"))
        shapes.append(Text(x, 58, f"height: at most {short(most, kind.unit)} a round", 10, "start", DIM))
        for row, (name, own) in enumerate(found):
            base = TOP + row * (HEAD + HIGH + DOWN) + HEAD + HIGH
            scales = (WIDE / rounds, HIGH / most if most else 0.0)
            shapes += panel(kind, own, x, base, scales)
            if not column:
                shapes.append(Text(x, base - HIGH - 25, name, 12, "start", bold=True))
            whole = short(sum(phase[key] for phase in own for key, _ in kind.parts), kind.unit)
            shapes.append(Text(x, base - HIGH - 9, f"{whole} in all", 11, "start"))
    width = LEFT + len(KINDS) * (WIDE + ACROSS) - ACROSS + RIGHT
    return Drawing(width, TOP + len(found) * (HEAD + HIGH + DOWN), title, tuple(shapes))


def pictured(runs: Sequence[Run]) -> bytes | None:
    """The picture of runs as a PNG, of several seeds the first; None where no history has costs."""
    groups = grouped(runs)
    if not any("cost" in line for group in groups for line in group[0].history):
        return None
    histories = (group[0].history for group in groups)
    return png(drawing(list(zip(names(groups), histories, strict=True))))


def panel(
    kind: Kind, own: Sequence[Phase], x: float, base: float, scales: tuple[float, float]
) -> list[Shape]:
    """The boxes of one run and one kind of cost, with the rounds at which phases begin under them."""
    across, up = scales
    shapes: list[Shape] = [Box(x, base, WIDE, 1, LINE)]
    labelled = x - ROOM
    for number, phase in enumerate(own):
        left, wide = x + (phase["first_round"] - 1) * across, phase["rounds"] * across
        floor = base
        for key, color in kind.parts:
            each = phase[key] / phase["rounds"]
            title = f"rounds {phase['first_round']}–{phase['last_round']}: {short(each, kind.unit)} a round"
            shapes.append(Box(left, floor - each * up, wide, each * up, color, title))
            floor -= each * up
        if number and wide > 2:
            shapes.append(Box(left, base - HIGH, 1, HIGH, EDGE))
        if left - labelled >= ROOM:
            shapes.append(Text(left, base + 10, str(phase["first_round"]), 9, "start", DIM))
            labelled = left
    last = own[-1]["last_round"] if own else 0
    if x + last * across - labelled >= 2 * ROOM:
        shapes.append(Text(x + last * across, base + 10, f"round {last}", 9, "end", DIM))
    return shapes
