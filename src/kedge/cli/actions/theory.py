"""The linear laboratory: simulated contraction ratios beside those of the theory."""

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kedge.cli.actions.partition import save_file
from kedge.cli.options import check_file
from kedge.cli.output import console, print_json, print_line, print_notes
from kedge.core.errors import RequestError, nearest
from kedge.measure.theory.linear import LEAST, NETWORKS, NEVER, Training
from kedge.measure.theory.study import frozen_steps, study
from kedge.report.plots.png import require_matplotlib
from kedge.report.plots.theory import OTHERWISE, theory_png
from kedge.report.tables.theory import column_notes, headline, theory_table, verdict

FROZEN = ("1", "0.2", "0.4")  # the default of --frozen, without numbers that exceed the local steps
LARGEST = 10**7  # maximum number of stored values


class Laboratory(NamedTuple):
    """Settings of the simulation; the names of the fields are those of the options."""

    seeds: int
    rounds: int
    steps: int
    lr: float
    clients: int
    model: str
    gradient: int
    flow: bool

    def check(self) -> None:
        """Raise if the settings cannot be simulated."""
        for name, least in (("seeds", 1), ("rounds", 1), ("steps", 1), ("clients", 2)):
            value = getattr(self, name)
            if value < least:
                raise RequestError(f"--{name} {value}: need a whole number of at least {least}.")
        if not 0 < self.lr < math.inf:
            raise RequestError(f"--lr {self.lr:g}: need a number above 0.")
        if self.gradient not in (1, 2):
            raise RequestError(
                f"--gradient {self.gradient}: need 2 (the true gradient of (f − 1)²) or 1 (half of it)."
            )
        if self.model not in NETWORKS:
            raise RequestError(
                f"--model {self.model}: no such model.{nearest(self.model, NETWORKS)} "
                f"Allowed: {', '.join(NETWORKS)}."
            )


def simulate(laboratory: Laboratory, frozen: Sequence[str]) -> dict[str, Any]:
    """Simulate FedAvg, FedBug with each number of `frozen` steps, and FedBABU."""
    seeds, rounds, steps, lr, clients, model, gradient, flow = laboratory
    counts = {"fedavg": 0, **fedbug_variants(frozen, steps), "fedbabu": NEVER}
    methods = {name: Training(lr, steps, count, gradient, flow) for name, count in counts.items()}
    numbers = len(methods) * seeds * rounds * clients
    if numbers > LARGEST:
        raise RequestError(
            f"{len(methods)} methods × {seeds} seeds × {rounds} rounds × {clients} clients are {numbers:,} "
            f"numbers to store: at most {LARGEST:,}. Lower --seeds, --rounds or --clients."
        )
    start = time.perf_counter()
    statistics = study(NETWORKS[model], methods, seeds, clients, rounds)
    seconds = time.perf_counter() - start
    return {**laboratory._asdict(), "least": LEAST, **statistics, "seconds": seconds}


def check_plot(path: Path) -> None:
    """Raise before the simulation if its plot cannot be drawn or written."""
    check_file("--plot", path, ".png")
    require_matplotlib(OTHERWISE)


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the three panels of the paper's figure into a PNG."""
    save_file(path, theory_png(result), "plot")


def print_simulation(result: dict[str, Any], plot_file: Path | None, as_json: bool) -> None:
    """Print simulated and theoretical ratios as a table, or as JSON."""
    if as_json:
        print_json({**result, "plot": None if plot_file is None else str(plot_file)})
        return
    screen = console()
    print_line(headline(result), "bold")
    screen.print(theory_table(result["methods"], screen.width))
    screen.print()
    for line in verdict(result):
        print_line(line)
    print_notes([*column_notes(result), f"simulated in {result['seconds']:.2f} s"])
    if plot_file is not None:
        print_line(f"written: {plot_file}")


def fedbug_variants(frozen: Sequence[str], steps: int) -> dict[str, int]:
    """Number of frozen steps of each FedBug variant, by name. Raise if it is FedAvg or FedBABU."""
    variants = dict(fedbug_variant(text, steps) for text in frozen or FROZEN)
    if not frozen:
        return {name: count for name, count in variants.items() if 1 <= count < steps}
    for text in frozen:
        _, count = fedbug_variant(text, steps)
        if not 1 <= count < steps:
            raise RequestError(
                f"--frozen {text}: freezes {count} of {steps} steps; need at least 1 (none is fedavg) and "
                "fewer than all (which is fedbabu). The table has fedavg and fedbabu anyway."
            )
    return variants


def fedbug_variant(text: str, steps: int) -> tuple[str, int]:
    """Name and number of frozen steps of `text`: a number of steps ('3'), or FedBug's ratio ('0.4')."""
    if re.fullmatch(r"[0-9]+", text):
        return f"fedbug, {int(text)} step{'' if int(text) == 1 else 's'}", int(text)
    if re.fullmatch(r"[0-9]*\.[0-9]+", text) and 0 < float(text) <= 1:
        return f"fedbug, P = {float(text):g}", frozen_steps(float(text), steps)
    raise RequestError(
        f"--frozen {text}: need a whole number of steps, such as 10, or a share of the local steps "
        "written with a point, above 0 and at most 1.0, such as 0.4."
    )
