"""An experiment as a user writes it: a TOML document, shorthand, settings on top.

Shorthand: a plain name stands for a table, and method = "fedbug(ratio=0.2) + feddyn(alpha=0.1)" sets the
tables [method] and [schedule]; method = "feddyn -> fedavg@0.75" also sets [[then]].
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.algorithms import METHODS, RULES, SCHEDULES
from kedge.core.errors import RequestError, nearest
from kedge.core.optimizers import SGD, Adam
from kedge.data.datasets import BUILT_IN
from kedge.data.partition import PARTITIONS
from kedge.models import MODELS
from kedge.running.factories import role_of

OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "adam": Adam}
SWITCH = 0.75  # the share of the rounds after which FedDyn→FedAvg's authors switch
SHIPPED = Path(__file__).parent.parent / "experiments"
FACTORIES: dict[str, Mapping[str, Any]] = {
    "data": BUILT_IN,
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHODS,
    "schedule": SCHEDULES,
    "optimizer": OPTIMIZERS,
    "when": RULES,
}
STAGED = ("when",)  # tables that stand in [[then]] only


def expanded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The document with shorthand written out: a plain name for a table, a sum for method and schedule."""
    table = dict(raw)
    if isinstance(table.get("method"), str):
        written = stage_tables(table["method"])
        table |= written if written["then"] or "then" not in table else {**written, "then": table["then"]}
    if isinstance(table.get("then"), list):
        table["then"] = [stage_row(row) if isinstance(row, dict) else row for row in table["then"]]
    for key in FACTORIES:
        if isinstance(table.get(key), str):
            table[key] = called(table[key], key)
    return table


def stage_row(row: dict[str, Any]) -> dict[str, Any]:
    """A table [[then]] with its shorthand written out."""
    if isinstance(row.get("method"), str):
        row = {**row, **method_tables(row["method"])}
    if isinstance(row.get("when"), str):
        row = {**row, "when": called(row["when"], "then.when")}
    return row


def method_tables(text: str) -> dict[str, dict[str, Any]]:
    """'fedbug(ratio=0.2)+feddyn' as the tables [schedule] and [method]."""
    tables: dict[str, dict[str, Any]] = {}
    for part in re.split(r"\+(?![^(]*\))", text):
        table = called(part, "method")
        name = table["name"]
        key = role_of(name) if ":" in name else "schedule" if name in SCHEDULES else "method"
        if ":" not in name and name not in SCHEDULES and name not in METHODS:
            allowed = [*METHODS, *SCHEDULES]
            raise RequestError(
                f"method = {text!r}: no method or schedule is called {name!r}.{nearest(name, allowed)} "
                f"Methods: {', '.join(METHODS)}; schedules: {', '.join(SCHEDULES)}."
            )
        if key in tables:
            raise RequestError(f"method = {text!r}: it names two {key}s, {tables[key]['name']} and {name}.")
        tables[key] = table
    return {"method": {"name": "fedavg"}, "schedule": {"name": "all"}, **tables}


def called(text: str, path: str) -> dict[str, Any]:
    """'name(key=value, …)' as a table."""
    match = re.fullmatch(r"\s*([\w.:/-]+)\s*(?:\((.*)\))?\s*", text)
    if not match:
        raise RequestError(
            f"{path} = {text!r}: cannot read it. Write name, name(key=value) or schedule+name."
        )
    name, inside = match.groups()
    pairs = re.split(r",(?![^\[]*\])", inside or "")  # a comma inside a list parts nothing
    options = [pair.split("=", 1) for pair in pairs if pair.strip()]
    if any(len(pair) != 2 for pair in options):
        raise RequestError(f"{path} = {text!r}: arguments are written key=value.")
    return {"name": name, **{k.strip(): literal(v) for k, v in options}}


def stage_tables(text: str) -> dict[str, Any]:
    """'feddyn -> fedavg@0.75' as [method], [schedule] and [[then]]: what follows, and from when on.

    After the @ stands a round, a share of the rounds, or a rule: 'feddyn -> fedavg@plateau(patience=5)'.
    """
    first, *later = text.split("->")
    rows = []
    for part in later:
        method, sign, at = part.partition("@")
        moment = literal(at) if sign else SWITCH
        when = {"when": rule_table(moment)} if isinstance(moment, str) else {"at": moment}
        rows.append({**when, **method_tables(method)})
    return {**method_tables(first), "then": rows}


def rule_table(text: str) -> dict[str, Any]:
    """What stands after the @ if it is no number."""
    table = called(text, "then.at")
    if table["name"] not in RULES:
        raise RequestError(
            f"then.at = {text!r}: need a share of the rounds (0.75), a round (150), "
            f"or a rule: {', '.join(RULES)}.{nearest(table['name'], RULES)}"
        )
    return table


def literal(text: str) -> Any:
    """A TOML value, or the bare word itself."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def override(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The document with dotted keys set: {"training.epochs": 5}."""
    table = expanded(raw)
    for path, value in settings.items():
        if path == "method" and isinstance(value, str):
            table |= stage_tables(value)
            continue
        *folders, key = path.split(".")
        place = table
        for number, name in enumerate(folders):
            inner = place.get(name, {})
            if not isinstance(inner, Mapping):
                raise RequestError(f"unknown key {path}: {'.'.join(folders[: number + 1])} is not a table.")
            place[name] = dict(inner)
            place = place[name]
        # Another name takes other arguments: the old ones go.
        if key == "name" and folders and folders[0] in FACTORIES and place.get("name") != value:
            place.clear()
        place[key] = called(value, key) if path in FACTORIES and isinstance(value, str) else value
    return table


def settings(pairs: list[str]) -> dict[str, Any]:
    """--set key=value, value read as TOML, else as a word."""
    values = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise RequestError(f"--set {pair}: write key=value, for instance --set training.epochs=5.")
        values[key.strip()] = literal(value)
    return values


def read(experiment: str | Path) -> dict[str, Any]:
    """The document of a TOML file, or of a shipped experiment by name."""
    path = Path(experiment)
    shipped = {p.stem: p for p in sorted(SHIPPED.glob("*.toml"))}
    if str(experiment) in shipped and not path.is_file():
        path = shipped[str(experiment)]
    if not path.is_file():
        raise RequestError(
            f"no experiment {str(experiment)!r}: neither a file nor a shipped one."
            f"{nearest(str(experiment), shipped)} "
            f"Shipped: {', '.join(shipped)}."
        )
    try:
        document = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is no valid TOML: {error}.") from None
    return {"name": path.stem, **document}
