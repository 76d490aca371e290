"""An experiment as written by a user, and as resolved: every default written out.

TOML tables name a factory and its arguments. Shorthand: method = "fedbug(ratio=0.2) + feddyn(alpha=0.1)"
sets the tables [method] and [schedule].
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w

from kedge.algorithms import METHODS, SCHEDULES
from kedge.core.errors import RequestError, nearest
from kedge.core.model import Statistics
from kedge.core.optimizers import SGD, Adam
from kedge.data.datasets import BUILT_IN, folder
from kedge.data.partition import PARTITIONS
from kedge.models import MODELS
from kedge.running.sampling import Participation
from kedge.running.schema import checked, dotted, filled, named, parameters

OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "adam": Adam}
SHIPPED = Path(__file__).parent.parent / "experiments"
GIVEN = {"model": ("shape", "classes"), "data": ("name",)}  # arguments that the program supplies


@dataclass(frozen=True)
class Training:
    """How clients train; the optimizer has its own table."""

    epochs: int = 1
    batch: int = 50
    clip: float | None = None
    drop_last: bool = False
    statistics: Statistics = "shared"  # batch norm's running statistics
    on_divergence: Literal["stop", "drop"] = "stop"


@dataclass(frozen=True)
class Evaluation:
    """How often, and which share of each client's samples is held out as its own test."""

    every: int = 1
    local_test: float = 0.0


@dataclass(frozen=True)
class Checkpoints:
    """How often a run saves its state."""

    every: int = 10


@dataclass(frozen=True)
class EngineChoice:
    """Where and how the kernel runs; 0 and "auto" let kedge choose."""

    name: Literal["auto", "sequential", "stacked"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "fp64"] = "fp32"
    compile: Literal["auto", "on", "off"] = "auto"
    chunk: int = 0
    threads: int = 0


@dataclass(frozen=True)
class Experiment:
    """A resolved experiment."""

    name: str
    rounds: int = 100
    seed: int = 0
    data: dict[str, Any] = field(default_factory=lambda: {"name": "digits"})
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid", "clients": 10})
    model: dict[str, Any] = field(default_factory=lambda: {"name": "mlp"})
    method: dict[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    schedule: dict[str, Any] = field(default_factory=lambda: {"name": "all"})
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "sgd"})
    participation: Participation = Participation()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoints = Checkpoints()
    engine: EngineChoice = EngineChoice()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise RequestError(
                f"name = {self.name!r}: use letters, digits, '.', '_', '+' and '-'; it names a folder."
            )
        positive = {
            "rounds": self.rounds,
            "training.epochs": self.training.epochs,
            "training.batch": self.training.batch,
            "evaluation.every": self.evaluation.every,
            "checkpoint.every": self.checkpoint.every,
        }
        for key, value in positive.items():
            if value < 1:
                raise RequestError(f"{key} = {value}: need a whole number of at least 1.")
        for key, value in {"engine.chunk": self.engine.chunk, "engine.threads": self.engine.threads}.items():
            if value < 0:
                raise RequestError(f"{key} = {value}: need 0 (automatic) or a positive number.")
        if not 0 <= self.seed < 2**32:
            raise RequestError(f"seed = {self.seed}: need 0 ≤ seed < 2³².")

    @property
    def label(self) -> str:
        """The method in one word, the schedule before it."""
        return (
            self.method["name"]
            if self.schedule["name"] == "all"
            else f"{self.schedule['name']}+{self.method['name']}"
        )

    def toml(self) -> str:
        """The configuration with every default written out."""
        return tomli_w.dumps(without_none(asdict(self)))


FACTORIES: dict[str, Mapping[str, Any]] = {
    "data": BUILT_IN,
    "partition": PARTITIONS,
    "model": MODELS,
    "method": METHODS,
    "schedule": SCHEDULES,
    "optimizer": OPTIMIZERS,
}


def resolve(raw: Mapping[str, Any]) -> Experiment:
    """The experiment of a parsed TOML document."""
    table = expanded(raw)
    hints = {key: hint for key, (hint, _) in parameters(Experiment).items()}
    sections = {key: hint for key, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    plain = {key: value for key, value in table.items() if key not in sections and key not in FACTORIES}
    values = filled(Experiment, plain, "")
    for key, hint in sections.items():
        inner = table.get(key, {})
        if not isinstance(inner, Mapping):
            raise RequestError(f"{key} = {inner!r}: need a table [{key}] with {', '.join(parameters(hint))}.")
        values[key] = hint(**filled(hint, inner, key))
    defaults = Experiment("defaults")
    for key in FACTORIES:
        values[key] = factory_table(key, table.get(key, getattr(defaults, key)))
    return Experiment(**values)


def factory_table(key: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table [data], [method], … with its factory's defaults written out."""
    if not isinstance(table, Mapping) or "name" not in table:
        raise RequestError(
            f"{key} = {table!r}: need a table with a name, "
            f"such as {{ name = {next(iter(FACTORIES[key]))!r} }}."
        )
    name = table["name"]
    options = {k: v for k, v in table.items() if k != "name"}
    # A dataset that is not built in is a file in the data folder.
    target = folder if key == "data" and name not in BUILT_IN else named(FACTORIES[key], name, f"{key}.name")
    return {"name": name, **filled(target, options, key, GIVEN.get(key, ()))}


def expanded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The document with shorthand written out: a plain name for a table, a sum for method and schedule."""
    table = dict(raw)
    if isinstance(table.get("method"), str):
        table |= method_tables(table["method"])
    for key in FACTORIES:
        if isinstance(table.get(key), str):
            table[key] = {"name": table[key]}
    return table


def method_tables(text: str) -> dict[str, dict[str, Any]]:
    """'fedbug(ratio=0.2)+feddyn' as the tables [schedule] and [method]."""
    tables: dict[str, dict[str, Any]] = {}
    for part in re.split(r"\+(?![^(]*\))", text):
        match = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", part)
        if not match:
            raise RequestError(
                f"method = {text!r}: cannot read {part!r}. Write name, name(key=value) or schedule+name."
            )
        name, inside = match.groups()
        key = "schedule" if name in SCHEDULES else "method"
        if name not in SCHEDULES and name not in METHODS:
            allowed = [*METHODS, *SCHEDULES]
            raise RequestError(
                f"method = {text!r}: no method or schedule is called {name!r}.{nearest(name, allowed)} "
                f"Methods: {', '.join(METHODS)}; schedules: {', '.join(SCHEDULES)}."
            )
        if key in tables:
            raise RequestError(f"method = {text!r}: it names two {key}s, {tables[key]['name']} and {name}.")
        options = [pair.split("=", 1) for pair in inside.split(",") if pair.strip()] if inside else []
        if any(len(pair) != 2 for pair in options):
            raise RequestError(f"method = {text!r}: arguments are written key=value.")
        tables[key] = {"name": name, **{k.strip(): literal(v) for k, v in options}}
    return {"method": {"name": "fedavg"}, "schedule": {"name": "all"}, **tables}


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
            table |= method_tables(value)
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
        place[key] = value
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


def without_none(value: Any) -> Any:
    """TOML has no null: an absent key means None."""
    if isinstance(value, Mapping):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list | tuple) else value


__all__ = ["Experiment", "checked", "dotted", "override", "read", "resolve", "settings"]
