"""An experiment as a user writes it: a TOML document with shorthand, and settings that replace its keys.

Shorthand:

    optimizer = "adam(lr=0.01)"             the table [optimizer]
    method = "fedbug(ratio=0.2) + feddyn"   the tables [schedule] and [method]
    method = "feddyn & feddecorr"           [method] and [[method.and]], methods whose corrections are added
    method = "feddyn -> fedavg@0.75"        [method] and [[then]], the later stages

With a method string that names no schedule, the table [schedule] of the document applies. Two different
schedules are an error.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.config.factories import role_of
from kedge.core.errors import RequestError, nearest
from kedge.core.optimizers import SGD, Adam
from kedge.data.datasets import BUILT_IN
from kedge.data.partitions.partition import PARTITIONS
from kedge.models import MODELS
from kedge.rules import RULES

OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "adam": Adam}
SWITCH = 0.75  # share of the rounds before a second stage without @; FedDyn→FedAvg's authors use it
SHIPPED = Path(__file__).parent.parent / "experiments"
FACTORIES: dict[str, Mapping[str, Any]] = {
    "data": BUILT_IN,
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHOD_FACTORIES,
    "schedule": SCHEDULE_FACTORIES,
    "optimizer": OPTIMIZERS,
    "when": RULES,
}
STAGED = ("when",)  # tables that only [[then]] has
PLAIN = FACTORIES.keys() - {"method"}  # keys with one name and its arguments as value
METHOD_FORMS = "name, name(key=value), schedule+name or name & name"
BY_METHOD = ("method", "schedule", "then")  # tables that a method string may set
OUTSIDE = r"(?![^(]*\))"  # lookahead: the character before is not inside parentheses
STAGE_PLAIN = ("schedule", "when")  # the keys of PLAIN that [[then]] has


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
    """The tables `named` by the method string `text` with those in `table`; raise if they contradict."""
    own = {key: table[key] for key in ("schedule", "then") if key in table}
    if isinstance(own.get("schedule"), Mapping) and own["schedule"] != named.get("schedule", own["schedule"]):
        inner, other = as_text(named["schedule"]), as_text(own["schedule"])
        plain = " -> ".join([as_text(named["method"]), *(part.strip() for part in text.split("->")[1:])])
        raise RequestError(
            f"{path}method = {text!r} names the schedule {inner!r}, but {path}schedule = {other!r} is "
            f"different. Name one: {path}method = {plain!r} beside {path}schedule = {other!r}, or "
            f"{path}method = {text!r} without the key {path}schedule."
        )
    if "then" in own and own["then"] != named.get("then", own["then"]):
        raise RequestError(
            f"method = {text!r} names later stages, but then = {own['then']!r} names others. Name "
            f"them in one place: in method, or as [[then]] beside method = {text.split('->')[0].strip()!r}."
        )
    return named | own


def method_tables(text: str) -> dict[str, dict[str, Any]]:
    """'fedbug(ratio=0.2)+feddyn' as the tables [schedule] and [method]; the default schedule is `all`."""
    return {"schedule": {"name": "all"}, **named_tables(text)}


def named_tables(text: str, path: str = "method") -> dict[str, dict[str, Any]]:
    """'fedbug(ratio=0.2)+feddyn' as the table [method], and [schedule] if `text` names one."""
    tables: dict[str, dict[str, Any]] = {}
    for part in re.split(rf"\+{OUTSIDE}", text):
        table, *further = [parsed_call(one, path) for one in re.split(rf"&{OUTSIDE}", part)]
        roles = [role(one["name"], text, path) for one in (table, *further)]
        if further and "schedule" in roles:
            name = (table, *further)[roles.index("schedule")]["name"]
            raise RequestError(
                f"{path} = {text!r}: {name} is a schedule, and & combines methods. Write it before "
                f"all of them: {name}+feddyn & feddecorr."
            )
        key = roles[0]
        if key in tables:
            named = f"{tables[key]['name']} and {table['name']}"
            hint = " Combine their corrections with &." if key == "method" else ""
            raise RequestError(f"{path} = {text!r}: it names two {key}s, {named}.{hint}")
        tables[key] = table | ({"and": further} if further else {})
    return {"method": {"name": "fedavg"}, **tables}


def role(name: str, text: str, path: str) -> str:
    """Whether `name` in the method string `text` is a method or a schedule; raise if it is neither."""
    if ":" in name:
        return role_of(name)
    if name not in SCHEDULE_FACTORIES and name not in METHOD_FACTORIES:
        allowed = [*METHOD_FACTORIES, *SCHEDULE_FACTORIES]
        raise RequestError(
            f"{path} = {text!r}: no method or schedule is called {name!r}.{nearest(name, allowed)} "
            f"Methods: {', '.join(METHOD_FACTORIES)}; schedules: {', '.join(SCHEDULE_FACTORIES)}."
        )
    return "schedule" if name in SCHEDULE_FACTORIES else "method"


def parsed_call(text: str, path: str) -> dict[str, Any]:
    """'name(key=value, …)' as a table; `path` is its key, for error messages."""
    match = re.fullmatch(r"\s*([\w.:/-]+)\s*(?:\((.*)\))?\s*", text)
    if not match:
        is_method = path.endswith("method")
        raise RequestError(
            f"{path} = {text!r}: cannot read it. "
            f"Write {METHOD_FORMS if is_method else 'name or name(key=value)'}."
        )
    name, inside = match.groups()
    pairs = re.split(r",(?![^\[]*\])", inside or "")  # commas that are not inside a list
    options = [pair.split("=", 1) for pair in pairs if pair.strip()]
    if any(len(pair) != 2 for pair in options):
        raise RequestError(f"{path} = {text!r}: arguments are written key=value.")
    return {"name": name, **{k.strip(): parsed_value(v) for k, v in options}}


def stage_tables(text: str) -> dict[str, Any]:
    """'feddyn -> fedavg@0.75' as the tables [method] and [[then]], the later stages with their starts.

    The result has [schedule] and [[then]] only if `text` names them. After the @ follows a round, a share of
    the rounds, or a rule: 'feddyn -> fedavg@plateau(patience=5)'.
    """
    first, *later = text.split("->")
    rows = []
    for part in later:
        method, sign, at = part.partition("@")
        moment = parsed_value(at) if sign else SWITCH
        when = {"when": rule_table(moment)} if isinstance(moment, str) else {"at": moment}
        rows.append({**when, **named_tables(method)})
    return {**named_tables(first), **({"then": rows} if rows else {})}


def rule_table(text: str) -> dict[str, Any]:
    """The table of the rule after the @, as in 'plateau(patience=5)'; raise if it is no rule."""
    table = parsed_call(text, "then.at")
    if table["name"] not in RULES:
        raise RequestError(
            f"then.at = {text!r}: need a share of the rounds (0.75), a round (150), "
            f"or a rule: {', '.join(RULES)}.{nearest(table['name'], RULES)}"
        )
    return table


def parsed_value(text: str) -> Any:
    """The value of a text in TOML; a bare word is a string."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def override(raw: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The document with dotted keys set: {"training.epochs": 5}.

    A method string replaces the document's method, and the schedule and later stages if it names them.
    """
    check_named_once(settings)
    table = dict(raw)
    for path, value in in_order(settings).items():
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
    """The document, in which shorthand that the key `path` would overwrite is replaced by tables."""
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


def in_order(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings sorted: whole tables first, names before arguments, because they replace nested keys."""
    return dict(
        sorted(
            settings.items(), key=lambda one: (one[0].count("."), one[0] != "method", ".name" not in one[0])
        )
    )


def as_text(value: Any) -> str:
    """A value as a user would write it in a configuration."""
    if isinstance(value, Mapping) and "name" in value:
        inside = ", ".join(f"{k}={as_text(v)}" for k, v in value.items() if k not in ("name", "and"))
        own = f"{value['name']}({inside})" if inside else str(value["name"])
        return " & ".join([own, *map(as_text, value.get("and", ()))])
    return value if isinstance(value, str) else json.dumps(value)


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
