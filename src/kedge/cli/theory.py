"""kedge theory: the linear laboratory, contraction ratios by theory beside those simulated."""

import math
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from kedge.cli.options import Debug, Json, console, guarded, notes, show
from kedge.cli.partition import save
from kedge.core.errors import RequestError, nearest
from kedge.measure.theory.linear import LEAST, NETWORKS, NEVER, Network, Training
from kedge.measure.theory.study import frozen_steps, study
from kedge.report.plots.png import require_matplotlib
from kedge.report.plots.theory import OTHERWISE, theory_png
from kedge.report.tables.theory import column_notes, headline, theory_table, verdict

FROZEN = ("1", "0.2", "0.4")  # where so few steps can be frozen
LARGEST = 10**7  # numbers kept


@guarded
def command(
    seeds: Annotated[int, typer.Option(help="Random starts: n and v uniform between 0 and 2.")] = 50,
    rounds: Annotated[int, typer.Option(help="Rounds of every seed.")] = 80,
    steps: Annotated[int, typer.Option(help="Local steps of every round.")] = 50,
    lr: Annotated[float, typer.Option(help="The local learning rate.")] = 0.1,
    frozen: Annotated[
        list[str],
        typer.Option(
            help="FedBug's frozen steps, repeatable: a whole number, or its share P written with a point "
            "(0.4), in the first half of which v is frozen. By default 1, 0.2 and 0.4."
        ),
    ] = [],  # noqa: B006
    clients: Annotated[int, typer.Option(help="How many clients, each with an n of its own.")] = 2,
    model: Annotated[
        str, typer.Option(help="multiplicative: f = n·v. additive: f = n + v, the appendix's.")
    ] = "multiplicative",
    gradient: Annotated[
        int, typer.Option(help="2: the true gradient of (f − 1)². 1: half of it, as the paper prints it.")
    ] = 2,
    flow: Annotated[
        bool, typer.Option("--flow", help="Local gradient flow to its end in place of steps.")
    ] = False,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw the three panels of the paper's figure into this PNG.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Simulate FedAvg, FedBug and FedBABU where theory says how fast clients agree, and compare the two."""
    network = checked(seeds, rounds, steps, lr, clients, model, gradient, plot_file)
    methods = {
        name: Training(lr, steps, count, gradient, flow)
        for name, count in {"fedavg": 0, **bugs(frozen, steps), "fedbabu": NEVER}.items()
    }
    numbers = len(methods) * seeds * rounds * clients
    if numbers > LARGEST:
        raise RequestError(
            f"{len(methods)} methods × {seeds} seeds × {rounds} rounds × {clients} clients are {numbers:,} "
            f"numbers to keep: at most {LARGEST:,}. Ask for fewer --seeds, --rounds or --clients."
        )
    began = time.perf_counter()
    result = {
        "model": model, "clients": clients, "seeds": seeds, "rounds": rounds, "steps": steps, "lr": lr,
        "gradient": gradient, "flow": flow, "least": LEAST, **study(network, methods, seeds, clients, rounds),
    }  # fmt: skip
    seconds = time.perf_counter() - began
    if plot_file is not None:
        save(plot_file, theory_png(result), "plot")
    if as_json:
        show({**result, "seconds": seconds, "plot": None if plot_file is None else str(plot_file)})
        return
    screen = console()
    screen.print(headline(result), style="bold", markup=False, highlight=False, soft_wrap=True)
    screen.print(theory_table(result["methods"], screen.width))
    screen.print()
    for line in verdict(result):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)
    notes([*column_notes(result), f"simulated in {seconds:.2f} s"])
    if plot_file is not None:
        screen.print(f"written: {plot_file}", markup=False, highlight=False, soft_wrap=True)


def checked(
    seeds: int, rounds: int, steps: int, lr: float, clients: int, model: str, gradient: int, file: Path | None
) -> Network:
    """The network asked for; everything is refused that cannot be simulated."""
    for name, value, least in (
        ("seeds", seeds, 1),
        ("rounds", rounds, 1),
        ("steps", steps, 1),
        ("clients", clients, 2),
    ):
        if value < least:
            raise RequestError(f"--{name} {value}: need a whole number of at least {least}.")
    if not 0 < lr < math.inf:
        raise RequestError(f"--lr {lr:g}: need a number above 0.")
    if gradient not in (1, 2):
        raise RequestError(
            f"--gradient {gradient}: allowed are 2, the true gradient of (f − 1)², and 1, half of it."
        )
    if model not in NETWORKS:
        raise RequestError(f"--model {model}:{nearest(model, NETWORKS)} Allowed: {', '.join(NETWORKS)}.")
    if file is not None:
        if file.suffix != ".png" or file.is_dir() or not file.parent.is_dir():
            raise RequestError(
                f"--plot {file}: need a file's name that ends in .png, in a folder that exists."
            )
        require_matplotlib(OTHERWISE)
    return NETWORKS[model]


def bugs(asked: list[str], steps: int) -> dict[str, int]:
    """FedBug's variants by name, with the steps they freeze."""
    if not asked:
        usual = (counted(text, steps) for text in FROZEN)
        return {name: count for name, count in usual if 1 <= count < steps}
    return dict(variant(text, steps) for text in asked)


def counted(text: str, steps: int) -> tuple[str, int]:
    """'3' freezes three steps; '0.4' as many as FedBug's schedule does with a share of 0.4."""
    if re.fullmatch(r"[0-9]+", text):
        return f"fedbug, {int(text)} step{'' if int(text) == 1 else 's'}", int(text)
    if re.fullmatch(r"[0-9]*\.[0-9]+", text) and 0 < float(text) <= 1:
        return f"fedbug, P = {float(text):g}", frozen_steps(float(text), steps)
    raise RequestError(
        f"--frozen {text}: need a whole number of steps, such as 10, or a share of the local steps "
        "written with a point, above 0 and at most 1.0, such as 0.4."
    )


def variant(text: str, steps: int) -> tuple[str, int]:
    """A variant that was asked for, which is neither FedAvg nor FedBABU."""
    name, count = counted(text, steps)
    if not 1 <= count < steps:
        raise RequestError(
            f"--frozen {text}: freezes {count} of {steps} steps; need at least 1 (none is fedavg) and fewer "
            "than all (which is fedbabu). Both of these are shown anyway."
        )
    return name, count
