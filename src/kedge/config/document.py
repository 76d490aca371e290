"""An experiment as a user writes it: a TOML document with shorthand, and settings that replace its keys.

Shorthand:

    optimizer = "adam(lr=0.01)"             the table [optimizer]
    method = "fedbug(ratio=0.2) + feddyn"   the tables [schedule] and [method]
    method = "feddyn & feddecorr"           [method] and [[method.and]], methods whose corrections are added
    method = "feddyn -> fedavg@0.75"        [method] and [[then]], the later stages

With a method string that names no schedule, the table [schedule] of the document applies. Two different
schedules are an error.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.config.factories import FACTORIES
from kedge.config.method_string import as_text, named_tables, parsed_call, parsed_value, stage_tables
from kedge.core.errors import RequestError, nearest

SHIPPED = Path(__file__).parent.parent / "experiments"
STAGED = ("when",)  # tables that only [[then]] has
PLAIN = FACTORIES.keys() - {"method"}  # keys whose value may be a text such as "adam(lr=0.01)"
STAGE_PLAIN = ("schedule", "when")  # the keys of PLAIN that a table [[then]] has
BY_METHOD = ("method", "schedule", "then")  # tables that a method string may set


def expanded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its shorthand replaced by tables."""
    table = {k: parsed_call(v, k) if k in PLAIN and isinstance(v, str) else v for k, v in raw.items()}
    if isinstance(table.get("then"), list):
        table["then"] = [stage_row(row) if isinstance(row, dict) else row for row in table["then"]]
    method = raw.get("method")
    if isinstance(method, str):
        table |= merge_stage(method, stage_tables(method), table)
    elif isinstance(method, Mapping):
        table["method"] = with_further_tables(method, "method")
    return table


def with_further_tables(method: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A table [method] whose list `and` has tables instead of plain names."""
    further = method.get("and", [])
    if not isinstance(further, list | tuple):
        raise RequestError(f"{path}.and = {further!r}: need a list of methods, such as ['feddecorr'].")
    rows = [parsed_call(row, f"{path}.and.method") if isinstance(row, str) else row for row in further]
    return {**method, **({"and": rows} if rows else {})}


def stage_row(row: dict[str, Any]) -> dict[str, Any]:
    """A table [[then]] with its shorthand replaced by tables."""
    row = {
        k: parsed_call(v, f"then.{k}") if k in STAGE_PLAIN and isinstance(v, str) else v
        for k, v in row.items()
    }
    if isinstance(row.get("method"), Mapping):
        row["method"] = with_further_tables(row["method"], "then.method")
    if isinstance(row.get("method"), str):
        row |= merge_stage(row["method"], named_tables(row["method"], "then.method"), row, "then.")
    return row


def merge_stage(text: str, named: dict[str, Any], table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`named`, the tables of the method string `text`, with schedule and later stages of `table`.

    Raise if `text` and `table` name different schedules or later stages.
    """
    keys = {key: table[key] for key in ("schedule", "then") if key in table}
    schedule = keys.get("schedule")
    if isinstance(schedule, Mapping) and schedule != named.get("schedule", schedule):
        inner, other = as_text(named["schedule"]), as_text(schedule)
        plain = " -> ".join([as_text(named["method"]), *(part.strip() for part in text.split("->")[1:])])
        raise RequestError(
            f"{path}method = {text!r} names the schedule {inner!r}, but {path}schedule = {other!r} is "
            f"different. Name one: {path}method = {plain!r} beside {path}schedule = {other!r}, or "
            f"{path}method = {text!r} without the key {path}schedule."
        )
    if "then" in keys and keys["then"] != named.get("then", keys["then"]):
        raise RequestError(
            f"method = {text!r} names later stages, but then = {keys['then']!r} names others. Name "
            f"them in one place: in method, or as [[then]] beside method = {text.split('->')[0].strip()!r}."
        )
    return named | keys


def override(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The document with dotted keys set: {"training.epochs": 5}.

    A method string replaces the document's method, and the schedule and later stages if it names them.
    """
    check_named_once(settings)
    table = dict(raw)
    for path, value in sorted_settings(settings).items():
        if path == "method" and isinstance(value, str):
            table = {k: v for k, v in table.items() if k not in stage_tables(value)} | {"method": value}
            continue
        *folders, key = path.split(".")
        table = expanded_for(table, path)
        place = table
        for number, name in enumerate(folders):
            inner = place.get(name, {})
            if not isinstance(inner, Mapping):
                raise RequestError(f"unknown key {path}: {'.'.join(folders[: number + 1])} is not a table.")
            place[name] = dict(inner)
            place = place[name]
        # Another factory has other arguments, so remove those of the previous one.
        if key == "name" and folders and folders[0] in FACTORIES and place.get("name") != value:
            place.clear()
        place[key] = parsed_call(value, key) if path in FACTORIES and isinstance(value, str) else value
    return table


def with_method(raw: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The document with the method string `text` instead of its method, schedule and later stages."""
    return {key: value for key, value in raw.items() if key not in BY_METHOD} | {"method": text}


def expanded_for(table: dict[str, Any], path: str) -> dict[str, Any]:
    """The document before its key `path` is set: shorthand in the way is replaced by tables."""
    first, sign, _ = path.partition(".")
    if first in BY_METHOD:
        return expanded(
            table if sign or first == "method" else {k: v for k, v in table.items() if k != first}
        )
    if sign and first in FACTORIES and isinstance(table.get(first), str):
        return {**table, first: parsed_call(table[first], first)}
    return dict(table)


def check_named_once(settings: Mapping[str, Any]) -> None:
    """Raise if another setting contradicts the schedule or the stages of a method string in `settings`."""
    method = settings.get("method")
    if not isinstance(method, str):
        return
    expanded({key: settings[key] for key in BY_METHOD if key in settings})
    name, named = settings.get("schedule.name"), stage_tables(method).get("schedule")
    if named and name not in (None, named["name"]):
        expanded({"method": method, "schedule": {"name": name}})


def sorted_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings sorted: tables before their keys, names before arguments, because they replace them."""

    def priority(item: tuple[str, Any]) -> tuple[int, bool, bool]:
        key, _ = item
        return key.count("."), key != "method", ".name" not in key

    return dict(sorted(settings.items(), key=priority))


def parsed_settings(pairs: list[str]) -> dict[str, Any]:
    """The values of --set key=value by key; each value is TOML or a bare word."""
    values = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise RequestError(f"--set {pair}: write key=value, as in --set training.epochs=5.")
        values[key.strip()] = parsed_value(value)
    return values


def read(experiment: str | Path) -> dict[str, Any]:
    """The document of a TOML file, or of a shipped experiment by name."""
    path = Path(experiment)
    shipped = {p.stem: p for p in sorted(SHIPPED.glob("*.toml"))}
    if str(experiment) in shipped and not path.is_file():
        path = shipped[str(experiment)]
    if not path.is_file():
        raise RequestError(
            f"no experiment {str(experiment)!r}: no such file, and no shipped experiment of this name."
            f"{nearest(str(experiment), shipped)} "
            f"Shipped: {', '.join(shipped)}."
        )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is no valid TOML: {error}.") from None
    return {"name": path.stem, **document}
