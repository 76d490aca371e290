"""A resolved experiment: every key checked, every default written out."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import Field

from kedge.config.document import STAGED, expanded
from kedge.config.factories import FACTORIES, factory_of
from kedge.config.protocols import with_protocol
from kedge.config.schema import parameters, with_defaults
from kedge.core.errors import RequestError
from kedge.core.model import Statistics
from kedge.core.ranges import Count, checked
from kedge.core.sampling import Participation
from kedge.data.augment import Augment
from kedge.data.dataset import normalized
from kedge.data.datasets import BUILT_IN
from kedge.data.local_tests import LocalTests, Share
from kedge.data.npz_files import dataset_from_folder
from kedge.measure.settings import Measure
from kedge.nn.precision import Precision
from kedge.nn.units import Granularity
from kedge.privacy.settings import OFF, Privacy

AND = "and"  # key of [method]: further methods, whose corrections are added; no argument has this name
SUPPLIED = {"model": ("shape", "classes"), "data": ("name", "source")}  # arguments that a table may not set
FURTHER = {"data": normalized}  # a function whose arguments the table may set, too


Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
TuneEvery = Annotated[int, Field(ge=0, description="0 is after the last round")]
Automatic = Annotated[int, Field(ge=0, description="0 is automatic")]


@checked(prefix="training.")
@dataclass(frozen=True)
class Training:
    """The table [training]: local training of the clients. The optimizer has its own table."""

    epochs: Count = 1
    batch: Count = 50
    clip: float | Literal["off"] | None = None  # of the gradient's global norm; "off" also under a protocol
    drop_last: bool = False
    augment: Augment = "none"  # of training images; flip-crop pads by 4, flips and crops
    statistics: Statistics = "shared"  # batch norm's running statistics: averaged, kept by clients, or frozen
    units: Granularity = "listed"  # granularity of the parts of the network that schedules freeze
    on_divergence: Literal["stop", "drop"] = "stop"


@checked(prefix="evaluation.")
@dataclass(frozen=True)
class Evaluation:
    """The table [evaluation]: interval, local tests, further models, fine-tuning."""

    every: Count = 1
    local_test: Share = 0.0  # of each client's samples: its local test
    # split: local tests are taken from the training part. merged: from training and test part together; their
    # union is the common test set, so .global. and .local. metrics have the same samples. matched: the test
    # part is split among the clients like the training part, class by class, and remains the common test set
    # (local_test = 0).
    local: LocalTests = "split"
    all: bool = False  # evaluate the mean of all clients' last models; stores one model per client
    tune: Literal["method", "off", "all", "head", "body"] = "method"  # fine-tune personal models
    tune_epochs: Count = 5
    tune_every: TuneEvery = 0
    headline: Literal["all", "seen"] = "all"  # whether clients that never took part count in personal means


@checked(prefix="checkpoint.")
@dataclass(frozen=True)
class Checkpoints:
    """The table [checkpoint]: the interval at which a run saves its state."""

    every: Annotated[int, Field(ge=0, description="0 is never")] = 10  # rounds


@checked(prefix="engine.")
@dataclass(frozen=True)
class EngineChoice:
    """The table [engine]: engine, device and precision. With 0 and "auto" kedge chooses."""

    name: Literal["auto", "sequential", "stacked", "captured", "ray"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = "fp32"
    compile: Literal["auto", "on", "off"] = "auto"
    chunk: Automatic = 0
    streams: Automatic = 0  # CUDA streams on which the clients of a round train at the same time
    threads: Automatic = 0
    # For the engine "ray":
    workers: Automatic = 0  # processes that train; 0: one for each GPU, or for each CPU core
    worker_engine: Literal["auto", "sequential", "stacked", "captured"] = "auto"
    address: str = ""  # of a cluster; empty: kedge starts one on this machine


@checked(prefix="")
@dataclass(frozen=True)
class Experiment:
    """A resolved experiment."""

    name: str
    rounds: Count = 100
    seed: Seed = 0
    protocol: str | None = None  # its values are the defaults of the other keys
    data: dict[str, Any] = field(default_factory=lambda: {"name": "digits"})
    partition: dict[str, Any] = field(default_factory=lambda: {"name": "iid", "clients": 10})
    model: dict[str, Any] = field(default_factory=lambda: {"name": "mlp"})
    method: dict[str, Any] = field(default_factory=lambda: {"name": "fedavg"})
    schedule: dict[str, Any] = field(default_factory=lambda: {"name": "all"})
    optimizer: dict[str, Any] = field(default_factory=lambda: {"name": "sgd"})
    participation: Participation = Participation()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    measure: Measure = Measure()
    privacy: Privacy = OFF
    checkpoint: Checkpoints = Checkpoints()
    engine: EngineChoice = EngineChoice()
    # Later stages: at (the latest start: a round, or a share of the rounds), when (a rule), method, schedule.
    then: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+-]+", self.name) or not re.search(r"\w", self.name):
            raise RequestError(
                f"name = {self.name!r}: use letters, digits, '.', '_', '+' and '-', with a letter or a digit "
                "among them; it names a folder. To write elsewhere, use --out DIR."
            )
        starts = [0, *self.starts]
        late = [row["when"] is None for row in self.then]
        for (before, after), fixed in zip(pairwise(starts), late, strict=True):
            if after <= before or (fixed and after >= self.rounds):
                raise RequestError(
                    f"then.at: the stages start after the rounds {starts} of {self.rounds}. Each stage must "
                    "start after the previous one, and before the last round."
                )

    @property
    def starts(self) -> list[int]:
        """The round after which each later stage starts, at the latest."""
        return [self.rounds if row["at"] is None else self.start(row["at"]) for row in self.then]

    def start(self, at: int | float) -> int:
        """The number of rounds before a stage; `at` below 1 is a share of all rounds."""
        if at <= 0 or (at >= 1 and at != int(at)):
            raise RequestError(f"then.at = {at}: need a share of the rounds (0.75) or a round (150).")
        return round(at * self.rounds) if at < 1 else int(at)

    @property
    def stages(self) -> list[tuple[dict[str, Any], dict[str, Any], int, dict[str, Any] | None]]:
        """Method, schedule, number of rounds and ending rule of every stage."""
        rows = [{"method": self.method, "schedule": self.schedule}, *self.then]
        ends = [*self.starts, self.rounds]
        rules = [*(row["when"] for row in self.then), None]
        return [
            (row["method"], row["schedule"], max(after - before, 0), rule)
            for row, (before, after), rule in zip(rows, pairwise([0, *ends]), rules, strict=True)
        ]

    @property
    def label(self) -> str:
        """The methods of all stages in one word: fedbug+feddyn->fedavg."""
        return "->".join(label_of(method, schedule) for method, schedule, *_ in self.stages)

    def toml(self) -> str:
        """The configuration with every default written out; without [privacy] if the run is not private."""
        return tomli_w.dumps(without_none(self.tables()))

    def tables(self) -> dict[str, Any]:
        """The configuration as a dict; without the table [privacy] if the run is not private."""
        return {k: v for k, v in asdict(self).items() if k != "privacy" or self.privacy.active}


def label_of(method: dict[str, Any], schedule: dict[str, Any]) -> str:
    """Schedule and methods in one word: fedbug+feddyn&feddecorr."""
    methods = "&".join(table["name"].rpartition(":")[2] for table in combined_methods(method))
    return methods if schedule["name"] == "all" else f"{schedule['name'].rpartition(':')[2]}+{methods}"


def combined_methods(method: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of a method and those of [[method.and]], without that key."""
    return [{k: v for k, v in method.items() if k != AND}, *method.get(AND, ())]


def resolve(raw: Mapping[str, Any]) -> Experiment:
    """The experiment of a parsed TOML document; its table [paper] is for `kedge reproduce` only."""
    if "grid" in raw:
        raise RequestError(
            "grid: the experiment has a table [grid], so it is several experiments. Use kedge sweep, or "
            "kedge reproduce for a paper's table."
        )
    defaults = Experiment("defaults")
    keys = {key: value for key, value in raw.items() if key != "paper"}
    table = with_protocol({"data": defaults.data, "method": defaults.method, **expanded(keys)})
    hints = {key: hint for key, (hint, _) in parameters(Experiment).items()}
    sections = {key: hint for key, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}
    later = table.pop("then", [])
    plain = {key: value for key, value in table.items() if key not in sections and key not in FACTORIES}
    check_nesting(plain, sections)
    values = with_defaults(Experiment, plain, "")
    for key, hint in sections.items():
        inner = table.get(key, {})
        if not isinstance(inner, Mapping):
            raise RequestError(f"{key} = {inner!r}: need a table [{key}] with {', '.join(parameters(hint))}.")
        values[key] = hint(**with_defaults(hint, inner, key))
    for key in FACTORIES.keys() - STAGED:
        values[key] = factory_table(key, table.get(key, getattr(defaults, key)))
    if not isinstance(later, list):
        raise RequestError(f"then = {later!r}: need a list of tables [[then]] with at or when, and method.")
    values["then"] = tuple(later_stage(**with_defaults(later_stage, row, "then")) for row in later)
    return Experiment(**values)


def check_nesting(table: Mapping[str, Any], sections: Mapping[str, type]) -> None:
    """Raise if a key of a section, such as `epochs`, is at the top of the document."""
    for key in table:
        for section, hint in sections.items():
            if key in parameters(hint) and key not in parameters(Experiment):
                raise RequestError(f"unknown key {key}. Did you mean '{section}.{key}'?")


def later_stage(
    method: dict[str, Any],
    schedule: dict[str, Any] | None = None,
    at: int | float | None = None,
    when: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A table [[then]]: method and schedule of a later stage, and its start: a round, a share, or a rule."""
    if at is None and when is None:
        raise RequestError("then: need at (a round, or a share of the rounds), or when (a rule), or both.")
    return {
        "at": at,
        "when": None if when is None else factory_table("when", when),
        "method": factory_table("method", method),
        "schedule": factory_table("schedule", schedule or {"name": "all"}),
    }


def factory_table(key: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table [data], [method], … with the defaults of its factory."""
    if not isinstance(table, Mapping) or "name" not in table:
        raise RequestError(
            f"{key} = {table!r}: need a table with a name, "
            f"such as {{ name = {next(iter(FACTORIES[key]))!r} }}."
        )
    if key == "method" and AND in table:
        first, *further = combined_methods(table)
        return {**factory_table(key, first), AND: [factory_table(key, row) for row in further]}
    name = table["name"]
    options = {k: v for k, v in table.items() if k != "name"}
    # A dataset that is not built in is a file in the data folder.
    file = key == "data" and name not in BUILT_IN
    target = dataset_from_folder if file else factory_of(key, name)
    return {
        "name": name,
        **with_defaults(target, options, key, SUPPLIED.get(key, ()), FURTHER.get(key), name),
    }


def options_of(table: dict[str, Any]) -> dict[str, Any]:
    """A table's arguments without its name."""
    return {k: v for k, v in table.items() if k != "name"}


def without_none(value: Any) -> Any:
    """`value` without keys whose value is None: TOML has no null, an absent key means None."""
    if isinstance(value, Mapping):
        return {k: without_none(v) for k, v in value.items() if v is not None}
    return [without_none(v) for v in value] if isinstance(value, list | tuple) else value
