"""kedge list: what there is, by name."""

import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.cli.options import Debug, Json, console, guarded, show
from kedge.config.document import OPTIMIZERS, SHIPPED
from kedge.config.protocols import PROTOCOLS
from kedge.core.errors import RequestError, nearest
from kedge.data.datasets import BUILT_IN
from kedge.data.npz_files import available_datasets
from kedge.data.partitions.partition import PARTITIONS
from kedge.engines.cuda.captured import Captured
from kedge.engines.sequential import Sequential
from kedge.engines.stacked import Stacked
from kedge.models import MODELS
from kedge.report.method_texts import text_of
from kedge.rules import RULES

KINDS = (
    "methods", "schedules", "rules", "models", "datasets", "partitions", "optimizers", "protocols",
    "experiments", "engines",
)  # fmt: skip
FACTORIES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "methods": METHOD_FACTORIES,
    "schedules": SCHEDULE_FACTORIES,
    "rules": RULES,
    "models": MODELS,
    "partitions": PARTITIONS,
    "optimizers": OPTIMIZERS,
    "engines": {"sequential": Sequential, "stacked": Stacked, "captured": Captured},
}
SUPPLIED = {"shape", "classes", "model", "federation"}  # arguments the program fills in


@guarded
def command(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS) + "; without it, everything.")] = "",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List methods, schedules, rules, models, datasets, partitions, protocols, experiments, and so on."""
    if kind and kind not in KINDS:
        raise RequestError(
            f"kedge list {kind}: no such kind.{nearest(kind, KINDS)} Allowed: {', '.join(KINDS)}."
        )
    listed = {name: entries(name) for name in ((kind,) if kind else KINDS)}
    if as_json:
        show(listed[kind] if kind else listed)
        return
    for name, rows in listed.items():
        table = Table(
            title=name, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
        )
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(ratio=1)
        table.add_column(style="dim")
        for row in rows:
            arguments = ", ".join(f"{k}={v}" for k, v in row["arguments"].items())
            table.add_row(row["name"], row["summary"], row["paper"] or arguments)
        console().print(table)
        console().print()


def entries(kind: str) -> list[dict[str, Any]]:
    """Name, one line, paper and arguments of everything of a kind."""
    if kind == "experiments":
        return [experiment(path.stem) for path in sorted(SHIPPED.glob("*.toml"))]
    if kind == "protocols":
        return [protocol(name) for name in PROTOCOLS]
    if kind == "datasets":
        found = [entry(name, factory) for name, factory in BUILT_IN.items()]
        files: list[dict[str, Any]] = [
            {"name": n, "summary": "a file of $KEDGE_DATA", "paper": None, "arguments": {}}
            for n in available_datasets()
            if n not in BUILT_IN
        ]
        return found + files
    listed = [entry(name, factory) for name, factory in FACTORIES[kind].items()]
    if kind not in ("methods", "schedules"):
        return listed
    return [{**row, "reports": list(text_of(row["name"]).cell)} for row in listed]


def entry(name: str, factory: Callable[..., Any]) -> dict[str, Any]:
    """What a factory says of itself; the paper is named in the first line of its module."""
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
    """A protocol; its arguments are the values it gives to what an experiment leaves open."""
    found = PROTOCOLS[name]
    values = {
        f"{key}.{inner}" if inner else key: value
        for key, table in found.tables.items()
        for inner, value in (table.items() if isinstance(table, Mapping) else [("", table)])
    }
    return {
        "name": name,
        "summary": found.summary,
        "paper": found.paper,
        "arguments": {**values, "method.weights": found.weights},
    }


def experiment(name: str) -> dict[str, Any]:
    """A shipped experiment; its first comment says what it shows."""
    text = (SHIPPED / f"{name}.toml").read_text()
    summary = text.splitlines()[0].removeprefix("#").strip()
    paper = tomllib.loads(text).get("paper", {}).get("source")
    return {"name": name, "summary": summary, "paper": paper, "arguments": {}}
