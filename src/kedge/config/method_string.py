"""Method strings: "fedbug(ratio=0.2) + feddyn(alpha=0.1) -> fedavg@0.75" as tables of a configuration.

    schedule + method        the schedule and the method of a stage
    method & method          methods whose corrections are added to those of the first
    stage -> stage@start     the next stage, and its start: a round, a share of the rounds, or a rule

A name is registered, or is the user's own: file.py:name or package.module:name. Arguments follow in
parentheses, with values as in TOML.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from kedge.algorithms import METHOD_FACTORIES, SCHEDULE_FACTORIES
from kedge.config.factories import role_of
from kedge.core.errors import RequestError, nearest
from kedge.rules import RULES

SWITCH = 0.75  # share of the rounds before a second stage without @; FedDyn→FedAvg's authors use it
METHOD_FORMS = "name, name(key=value), schedule+name or name & name"
OUTSIDE = r"(?![^(]*\))"  # lookahead: the character before is not inside parentheses


def stage_tables(text: str) -> dict[str, Any]:
    """'feddyn -> fedavg@0.75' as the tables [method] and [[then]], the later stages with their starts.

    The result has [schedule] and [[then]] only if `text` names them. After the @ follows a round, a share of
    the rounds, or a rule: 'feddyn -> fedavg@plateau(patience=5)'.
    """
    first, *later = text.split("->")
    rows = []
    for part in later:
        method, sign, text_of_start = part.partition("@")
        start = parsed_value(text_of_start) if sign else SWITCH
        keys = {"when": rule_table(start)} if isinstance(start, str) else {"at": start}
        rows.append({**keys, **named_tables(method)})
    return {**named_tables(first), **({"then": rows} if rows else {})}


def named_tables(text: str, path: str = "method") -> dict[str, dict[str, Any]]:
    """'fedbug(ratio=0.2)+feddyn' as the table [method], and [schedule] if `text` names one."""
    tables: dict[str, dict[str, Any]] = {}
    for part in re.split(rf"\+{OUTSIDE}", text):
        table, *further = [parsed_call(call, path) for call in re.split(rf"&{OUTSIDE}", part)]
        roles = [role(call["name"], text, path) for call in (table, *further)]
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


def as_text(value: Any) -> str:
    """A value as a user would write it in a configuration."""
    if isinstance(value, Mapping) and "name" in value:
        inside = ", ".join(f"{k}={as_text(v)}" for k, v in value.items() if k not in ("name", "and"))
        call = f"{value['name']}({inside})" if inside else str(value["name"])
        return " & ".join([call, *map(as_text, value.get("and", ()))])
    return value if isinstance(value, str) else json.dumps(value)
