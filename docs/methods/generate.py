"""The pages of this folder: one a method, one a schedule, and the index, from the texts and from the code.

    python docs/methods/generate.py [--check]

The texts are in src/kedge/algorithms/texts/. Arguments come from the factories' signatures, checks from the
audit, costs from rounds that are run here.
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
from kedge.models.mlp import mlp
from kedge.nn.from_module import from_module, seeded
from kedge.report.method_texts import Text, text_of

FOLDER = Path(__file__).parent
PACKAGES = Path(kedge.__file__).parent.parent
MADE = "<!-- Made by generate.py from algorithms/texts/ and the code: edit those, then run make docs. -->"
INDEX = FOLDER / "index.toml"

WIDTHS = (20, 30, 10)  # the perceptron on which traffic and memory are counted
DEEP = (20, 30, 30, 30, 10)  # the one for schedules: three base units and the head
SAMPLES = 12  # a client's, all in one batch
MANY = 6  # combinations that the table of checks still names
ROUNDS, STEPS = 300, 20  # over which a schedule is averaged

Factory = Callable[..., Any]
FACTORIES: dict[str, Factory] = {**METHOD_FACTORIES, **SCHEDULE_FACTORIES}


def size(tree: Tree) -> int:
    """How many numbers a tree holds."""
    return sum(v.numel() for v in flatten(tree).values())


def counting(model: Model) -> tuple[Model, list[int]]:
    """The model, and how many samples each of its forward passes had, as they happen."""
    seen: list[int] = []

    def apply(params: Leaves, buffers: Leaves, batch: Batch, train: bool) -> tuple[Output, Leaves]:
        seen.append(len(batch.x))
        return model.apply(params, buffers, batch, train)

    return replace(model, apply=apply), seen


def second_round(algorithm: Algorithm, epochs: int) -> tuple[dict[str, int], int, float]:
    """A round of one client, when everything there is to remember is there.

    The numbers that travel and stay, those of the model, and the forward passes over the client's data.
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
        down, up = size({"model": server.shared, "broadcast": sent}), size(reply.mean)
        server = server_update(algorithm, server, reply, 1, number)
    numbers = {
        "sent to a client in a round": down,
        "sent by a client in a round": up,
        "kept by a client between rounds": size(engine.save()),
        "kept by the server beside the model": size(server.slots),
    }
    return numbers, unit, sum(seen) / SAMPLES


def shares(schedule: Schedule) -> tuple[float, float]:
    """Of training everything: the parameters that train, and the multiply-adds of a step, in the mean.

    A linear layer costs its weights once forward, once for their gradient if it trains, and once for the
    gradient of its input if a layer below trains.
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
    """A paragraph in one line: wrapped, a line could begin with a sign that Markdown takes for a list."""
    return " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def value(given: Any) -> str:
    """A value as TOML has it."""
    return "none" if given is None else json.dumps(given, ensure_ascii=False)


def type_name(hint: Any) -> str:
    """A type as a user of the command line would name it."""
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
    """The method as the command line writes it and as Python does, with its first argument if a number."""
    first = next(iter(inspect.signature(factory).parameters.values()), None)
    shown = f"{first.name}={first.default}" if first and type(first.default) in (int, float) else ""
    scheduled, attribute = name in SCHEDULE_FACTORIES, name.replace("-", "_")
    written = (text.example or (f"{name}({shown})" if shown else name)) + "+fedavg" * scheduled
    if attribute not in kedge.__all__ or text.example:
        return written, f'"{written}"'
    inside = ", ".join(filter(None, ("kedge.fedavg()" if scheduled else "", shown)))
    return written, f"kedge.{attribute}({inside})"


def audited(name: str) -> str:
    """The audit's checks of `name` and of its combinations; those of every method in one sentence."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    try:
        for check in checks_of([name]):
            found.setdefault((check.name, check.kind), {})[check.method] = None
    except RequestError:
        return "No check carries its name."
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
    """What a schedule saves, as a table."""
    what, widths = ("parameters that train in a step", "multiply-adds of a step"), "–".join(map(str, DEEP))
    rows = [(name, f"{share:.2f}") for name, share in zip(what, shares(schedule), strict=True)]
    note = f"Mean over {ROUNDS} rounds of {STEPS} steps of a perceptron {widths}, with the default arguments."
    return table(("", "of training everything"), rows) + f"\n\n{note}"


def spending(algorithm: Algorithm) -> str:
    """What a method costs, as a table."""
    (numbers, unit, two), (_, _, four) = second_round(algorithm, 2), second_round(algorithm, 4)
    step, after = (four - two) / 2, 2 * two - four  # epochs were 2 and 4
    rows = [(what, f"{count / unit:.2f} × model" if count else "nothing") for what, count in numbers.items()]
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
    """A row of the index: name, idea, authors and year, the cell the paper reports."""
    idea = plain(text.idea.splitlines()[0]).rstrip(".")
    paper = re.match(r"[^*]*?\b\d{4}|[^,(:]*", text.paper)
    cell = next((f"`{cell}`" for cell in text.cell), "–")
    return f"[{name}]({name}.md)", idea, paper[0].strip() if paper else "", cell


def index() -> str:
    """The page that links to the others."""
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
    """The pages on disk that are not as made: changed, missing, or made once and now of nothing."""
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    once = {name for name, text in there.items() if text.startswith(MADE)}
    return sorted(name for name in made.keys() | once if made.get(name) != there.get(name))


def main() -> int:
    """Write the pages that differ, or only name them."""
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
