"""Write the pages of this folder: one for each method and schedule, and the index.

    python docs/methods/generate.py [--check]

The texts are in src/kedge/algorithms/texts/. Arguments are read from the factories' signatures, checks from
the audit; costs are counted in rounds that are run here.
"""

import argparse
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

import kedge
from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.audit.audit import checks_of
from kedge.audit.registry.every_method import PROPERTIES
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.model import Batch, Model, Output
from kedge.core.schedules import Clock, Schedule, all_units
from kedge.core.server import broadcast, initial_server, server_update
from kedge.core.tree import Leaves, Tree, flatten
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.engines.engine import Order
from kedge.engines.sequential import Sequential
from kedge.measure.cost.traffic import Traffic
from kedge.models.mlp import mlp
from kedge.nn.from_module import from_module, seeded
from kedge.report.method_texts import Text, text_of

FOLDER = Path(__file__).parent
PACKAGES = Path(kedge.__file__).parent.parent
MADE = "<!-- Made by generate.py from algorithms/texts/ and the code: edit those, then run make docs. -->"
INDEX = FOLDER / "index.toml"

WIDTHS = (20, 30, 10)  # the perceptron on which traffic and memory are counted
DEEP = (20, 30, 30, 30, 10)  # the one for schedules: three base units and the head
BYTES = 4  # of a number
SAMPLES = 12  # of the client, all in one batch
MANY = 6  # the table of checks names at most this number of methods per check
ROUNDS, STEPS = 300, 20  # the costs of a schedule are averaged over them

Factory = Callable[..., Any]
FACTORIES: dict[str, Factory] = {**METHOD_FACTORIES, **SCHEDULE_FACTORIES}


def size(tree: Tree) -> int:
    """The number of values in a tree."""
    return sum(v.numel() for v in flatten(tree).values())


def counting(model: Model) -> tuple[Model, list[int]]:
    """The model, and a list to which each forward pass appends its number of samples."""
    seen: list[int] = []

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        seen.append(len(batch.x))
        return model.apply(params, buffers, batch, train)

    return replace(model, apply=apply), seen


def second_round(algorithm: Algorithm, epochs: int) -> tuple[dict[str, int], int, float]:
    """The costs of the second round of one client, when all memories exist.

    Numbers that are sent and kept, the number of parameters, and the forward passes over the client's data.
    """
    data = federate(synthetic(2 * SAMPLES, WIDTHS[-1], WIDTHS[0]), [np.arange(SAMPLES)])
    network = from_module(seeded(lambda: mlp(WIDTHS[:1], WIDTHS[-1], WIDTHS[1:-1]), 0))
    model, seen = counting(algorithm.adapt(network))
    params, buffers = model.init(0)
    unit = sum(params[k].numel() for leaves in model.units for k in leaves)
    engine = Sequential(model, data)
    engine.begin(Stage(algorithm, 2, LocalTraining(epochs, SAMPLES)), params)
    server = initial_server(algorithm, model, params, buffers)
    for number in range(2):
        seen.clear()
        sent = broadcast(algorithm, server)
        reply = engine.train(Order(number, number, 0, server.shared, server.buffers, sent), [0]).reply()
        down = {"model": server.shared, "broadcast": sent}
        traffic = Traffic(frozenset(params), down, reply.mean, {}, "frozen")
        server = server_update(algorithm, server, reply, 1, number)
    numbers = {
        "sent to a client in a round": traffic.bytes_down(reply.trained) // BYTES,
        "sent by a client in a round": traffic.bytes_up(reply.trained) // BYTES,
        "kept by a client between rounds": size(engine.save()),
        "kept by the server beside the model": size(server.slots),
    }
    return numbers, unit, sum(seen) / SAMPLES


def shares(schedule: Schedule) -> tuple[float, float]:
    """The shares of parameters that train and of a step's multiply-adds under a schedule, on average.

    The multiply-adds of a linear layer are its number of weights: once forward, once for the weight gradient
    if the layer trains, and once for the input gradient if a layer below trains.
    """
    weights = np.array([a * b for a, b in pairwise(DEEP)])
    parameters = weights + np.array(DEEP[1:])
    clocks = [Clock(r, r, k, STEPS) for r in range(ROUNDS) for k in range(STEPS)]
    masks = np.array([schedule(clock, len(weights)) for clock in clocks], dtype=int)
    below = np.cumsum(masks, axis=1) > masks
    work = (weights * (1 + masks + below)).sum(1)
    whole = 3 * weights.sum() - weights[0]
    return float((masks @ parameters).mean() / parameters.sum()), float(work.mean() / whole)


def plain(text: str) -> str:
    """A paragraph in one line, because a wrapped line might begin with the sign of a Markdown list."""
    return " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def value(given: Any) -> str:
    """A value as it is written in TOML."""
    return "none" if given is None else json.dumps(given, ensure_ascii=False)


def type_name(hint: Any) -> str:
    """A type in words for a user of the command line."""
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value(choice)}`" for choice in get_args(hint))
    if get_origin(hint) in (tuple, list):
        return f"list of {type_name(get_args(hint)[0])}"
    if get_args(hint):
        return " or ".join(type_name(part) for part in get_args(hint))
    return "none" if hint is type(None) else str(hint.__name__)


def arguments(factory: Factory) -> str:
    """The factory's arguments as a table."""
    hints = get_type_hints(factory)
    rows = [
        (f"`{k}`", type_name(hints[k]), "required" if p.default is p.empty else f"`{value(p.default)}`")
        for k, p in inspect.signature(factory).parameters.items()
    ]
    return table(("argument", "type", "default"), rows) if rows else "It takes no arguments."


def usage(name: str, factory: Factory, text: Text) -> tuple[str, str]:
    """The method on the command line and in Python, with its first argument if that is a number."""
    first = next(iter(inspect.signature(factory).parameters.values()), None)
    shown = f"{first.name}={first.default}" if first and type(first.default) in (int, float) else ""
    scheduled, attribute = name in SCHEDULE_FACTORIES, name.replace("-", "_")
    written = (text.example or (f"{name}({shown})" if shown else name)) + "+fedavg" * scheduled
    if attribute not in kedge.__all__ or text.example:
        return written, f'"{written}"'
    inside = ", ".join(filter(None, ("kedge.fedavg()" if scheduled else "", shown)))
    return written, f"kedge.{attribute}({inside})"


def audited(name: str) -> str:
    """The audit's checks of `name` and of its combinations; checks of every method are only counted."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    try:
        for check in checks_of([name]):
            found.setdefault((check.name, check.kind), {})[check.method] = None
    except RequestError:
        return "No check has its name."
    general = {one.name for one in PROPERTIES}
    rows = [
        (*key, ", ".join(on) if len(on) <= MANY else f"{len(on)} methods")
        for key, on in found.items()
        if key[0] not in general
    ]
    count = len(general & {check for check, _ in found})
    every = f" It also runs {count} checks that are the same for every method: `--details` lists them."
    intro = f"`kedge audit {name}` runs these." + (every if count else "")
    return f"{intro}\n\n" + table(("check", "kind", "on"), rows)


def saving(schedule: Schedule) -> str:
    """The savings of a schedule, as a table."""
    names, widths = ("parameters that train in a step", "multiply-adds of a step"), "–".join(map(str, DEEP))
    rows = [(name, f"{share:.2f}") for name, share in zip(names, shares(schedule), strict=True)]
    note = f"Mean over {ROUNDS} rounds of {STEPS} steps of a perceptron {widths}, with the default arguments."
    return table(("", "of training everything"), rows) + f"\n\n{note}"


def spending(algorithm: Algorithm) -> str:
    """The costs of a method, as a table."""
    (numbers, unit, two), (_, _, four) = second_round(algorithm, 2), second_round(algorithm, 4)
    step, after = (four - two) / 2, 2 * two - four  # epochs were 2 and 4
    rows = [(name, f"{count / unit:.2f} × model" if count else "nothing") for name, count in numbers.items()]
    rows += [("forward passes of a step", f"{step:g}")]
    rows += [("passes over the client's data after its last step", f"{after:g}")] * (after > 0)
    sizes, widths = [b * (a + 1) for a, b in pairwise(WIDTHS)], "–".join(map(str, WIDTHS))
    note = f"Counted on a perceptron {widths}; {sizes[-1]} of its {sum(sizes)} parameters are the head's."
    note += f" The method makes it a network of {unit}." * (unit != sum(sizes))
    own = [saving(algorithm.schedule)] if algorithm.schedule is not all_units else []
    return "\n\n".join([table(("", "cost"), rows), note, *own])


def page(name: str, factory: Factory, text: Text) -> str:
    """The page of a method or a schedule."""
    source = Path(inspect.getfile(inspect.unwrap(factory))).relative_to(PACKAGES)
    command, call = usage(name, factory, text)
    parts = [
        f"{MADE}\n# {name}",
        f"{plain(text.paper)}. Code: [{source.name}](../../src/{source.as_posix()}).",
        plain(text.idea),
        f"```text\n{text.equation.strip()}\n```",
        "[Symbols](README.md#symbols)",
        "## How to run it",
        f'```sh\nkedge run quickstart --methods "{command}"\n```',
        f"```python\nkedge.train(module, clients, method={call})\n```",
        arguments(factory),
        "## When to use it",
        plain(text.use),
        "## Cost",
        plain(text.cost),
        saving(factory()) if name in SCHEDULE_FACTORIES else spending(factory()),
        "## What the audit checks",
        audited(name),
        "## Where papers and codes disagree",
        "\n".join(f"- {plain(line)}" for line in text.disagree),
        "## Which accuracy the paper reports",
        plain(text.reports).rstrip(".") + ".",
    ]
    return "\n\n".join(parts) + "\n"


def entry(name: str, text: Text) -> tuple[str, str, str, str]:
    """A row of the index: name, idea, authors and year, and the accuracy that the paper reports."""
    idea = plain(text.idea.splitlines()[0]).rstrip(".")
    paper = re.match(r"[^*]*?\b\d{4}|[^,(:]*", text.paper)
    cell = next((f"`{cell}`" for cell in text.cell), "–")
    return f"[{name}]({name}.md)", idea, paper[0].strip() if paper else "", cell


def index() -> str:
    """The index page."""
    own, head = tomllib.loads(INDEX.read_text()), ("name", "idea", "paper", "the paper reports")
    parts = [
        f"{MADE}\n# Methods and schedules",
        plain(own["intro"]),
        "## Methods",
        table(head, [entry(name, text_of(name)) for name in METHOD_FACTORIES]),
        "## Schedules",
        plain(own["schedules"]),
        table(head, [entry(name, text_of(name)) for name in SCHEDULE_FACTORIES]),
        "## Two methods at once",
        plain(own["combined"]),
        "## Which accuracy",
        plain(own["accuracy"]),
        table(("part of the name", "meaning"), [(f"`{k}`", v) for k, v in own["names"].items()]),
        "## Symbols",
        table(("symbol", "meaning"), list(own["symbols"].items())),
    ]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """All pages, by file name."""
    made = {f"{name}.md": page(name, factory, text_of(name)) for name, factory in FACTORIES.items()}
    return {"README.md": index(), **made}


def differing(made: dict[str, str]) -> list[str]:
    """The names of pages that differ on disk: changed, missing, or of a method that no longer exists."""
    on_disk = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    generated = {name for name, text in on_disk.items() if text.startswith(MADE)}
    return sorted(name for name in made.keys() | generated if made.get(name) != on_disk.get(name))


def main() -> int:
    """Write the pages that differ, or only print their names."""
    parser = argparse.ArgumentParser(description="Write the pages of docs/methods that are out of date.")
    parser.add_argument("--check", action="store_true", help="only name them; exit 1 if there are any")
    check, made = parser.parse_args().check, pages()
    changed = differing(made)
    for name in changed:
        print(name)
        if name in made and not check:
            (FOLDER / name).write_text(made[name])
        elif not check:
            (FOLDER / name).unlink()
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
