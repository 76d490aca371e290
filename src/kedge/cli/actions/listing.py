"""Tables of the names that an experiment may use, with arguments and papers."""

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.cli.output import console, print_json
from kedge.config.document import SHIPPED
from kedge.config.factories import OPTIMIZERS
from kedge.config.method_string import as_text
from kedge.config.protocols import PROTOCOLS
from kedge.data.datasets import BUILT_IN
from kedge.data.npz_files import available_datasets
from kedge.data.partitions.partition import PARTITIONS
from kedge.engines.cuda.captured import Captured
from kedge.engines.ray.ray_engine import RayEngine
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.models import MODELS
from kedge.report.method_texts import text_of
from kedge.rules import RULES

FACTORIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "methods": METHOD_FACTORIES,
    "schedules": SCHEDULE_FACTORIES,
    "rules": RULES,
    "models": MODELS,
    "partitions": PARTITIONS,
    "optimizers": OPTIMIZERS,
    "engines": {"sequential": Sequential, "stacked": Stacked, "captured": Captured, "ray": RayEngine},
}
SUPPLIED = {
    "shape",
    "classes",
    "model",
    "federation",
    "backend",
    "participants",
    "cluster",
    "settings",
    "say",
}  # arguments not listed


def print_kinds(kinds: Sequence[str], as_json: bool) -> None:
    """Print a table of names for each kind, or JSON: a list for one kind, lists by kind for several.

    Arguments are shown for a single kind, or if no paper takes their place.
    """
    listed = {kind: entries(kind) for kind in kinds}
    if as_json:
        print_json(listed[kinds[0]] if len(kinds) == 1 else listed)
        return
    for kind, rows in listed.items():
        table = Table(
            title=kind, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(ratio=1)
        table.add_column(style="dim")
        for row in rows:
            arguments = ", ".join(f"{k}={value_text(v)}" for k, v in row["arguments"].items())
            about = Text(row["summary"])
            if len(kinds) == 1 and row["paper"] and arguments:
                about.append(f"\n{arguments}", "dim")
            table.add_row(row["name"], about, row["paper"] or arguments)
        console().print(table)
        console().print()


def value_text(value: Any) -> str:
    """A value as in a method string; "none" for an argument without one."""
    return "none" if value is None else as_text(value)


def entries(kind: str) -> list[dict[str, Any]]:
    """Name, summary, paper and arguments of each entry of a kind."""
    if kind == "experiments":
        return [experiment(path.stem) for path in sorted(SHIPPED.glob("*.toml"))]
    if kind == "protocols":
        return [protocol(name) for name in PROTOCOLS]
    if kind == "datasets":
        built_in = [entry(name, factory) for name, factory in BUILT_IN.items()]
        files: list[dict[str, Any]] = [
            {"name": n, "summary": "a file of $KEDGE_DATA", "paper": None, "arguments": {}}
            for n in available_datasets()
            if n not in BUILT_IN
        ]
        return built_in + files
    listed = [entry(name, factory) for name, factory in FACTORIES[kind].items()]
    if kind not in ("methods", "schedules"):
        return listed
    return [{**row, "reports": list(text_of(row["name"]).cell)} for row in listed]


def entry(name: str, factory: Callable[..., Any]) -> dict[str, Any]:
    """Name, summary and arguments of a factory; the first line of its module names the paper."""
    module = inspect.getdoc(sys.modules[factory.__module__]) or ""
    paper = re.match(r"[\w→-]+ \(([^()]*)\)", module)
    summary = (inspect.getdoc(factory) or "").splitlines()[0]
    arguments = {
        k: "required" if p.default is inspect.Parameter.empty else p.default
        for k, p in inspect.signature(factory).parameters.items()
        if k not in SUPPLIED
    }
    return {"name": name, "summary": summary, "paper": paper and paper[1], "arguments": arguments}


def protocol(name: str) -> dict[str, Any]:
    """A protocol; its arguments are the values for keys that an experiment does not set."""
    preset = PROTOCOLS[name]
    values = {
        f"{key}.{inner}" if inner else key: value
        for key, table in preset.tables.items()
        for inner, value in (table.items() if isinstance(table, Mapping) else [("", table)])
    }
    return {
        "name": name,
        "summary": preset.summary,
        "paper": preset.paper,
        "arguments": {**values, "method.weights": preset.weights},
    }


def experiment(name: str) -> dict[str, Any]:
    """A shipped experiment; its first comment is the summary."""
    text = (SHIPPED / f"{name}.toml").read_text()
    summary = text.splitlines()[0].removeprefix("#").strip()
    paper = tomllib.loads(text).get("paper", {}).get("source")
    return {"name": name, "summary": summary, "paper": paper, "arguments": {}}
