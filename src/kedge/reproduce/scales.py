"""Shorter scales of a table's runs: small and smoke.

small: a tenth of the rounds. Everything measured in rounds (evaluations, the thaw of a schedule, the start of
a stage) is scaled as well. smoke: two rounds of two clients with a few synthetic samples of the dataset's
shape.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kedge.config.experiment import Checkpoints, Experiment, factory_table
from kedge.core.errors import RequestError
from kedge.core.sampling import Participation

Scale = Literal["smoke", "small", "full"]
TENTH = 10
BATCH = 4  # samples of a batch of synthetic data
CLIENTS = 4
SHAPES: Mapping[str, tuple[tuple[int, ...], str, int]] = {  # of a stored sample, dtype, classes
    "mnist": ((28, 28), "uint8", 10),
    "cifar10": ((32, 32, 3), "uint8", 10),
    "cifar100": ((32, 32, 3), "uint8", 100),
    "tiny-imagenet": ((64, 64, 3), "uint8", 200),
    "organamnist": ((28, 28), "uint8", 11),
    "organcmnist": ((28, 28), "uint8", 11),
    "organsmnist": ((28, 28), "uint8", 11),
    "covidx": ((64, 64), "uint8", 3),
    "pamap2": ((27, 1, 200), "float32", 10),
}


def small(experiment: Experiment) -> Experiment:
    """The experiment with a tenth of its rounds."""
    return with_rounds(experiment, -(-experiment.rounds // TENTH))


def smoke(experiment: Experiment, synthetic: Path) -> Experiment:
    """Two rounds of the same method, schedule and model on the synthetic data in the folder `synthetic`."""
    short = with_rounds(experiment, 2)
    return replace(
        short,
        data={**short.data, "path": str(synthetic)},
        partition=factory_table("partition", {"name": "iid", "clients": CLIENTS}),
        participation=Participation(per_round=CLIENTS // 2),
        training=replace(short.training, epochs=min(2, short.training.epochs), batch=BATCH),
        evaluation=replace(short.evaluation, tune_epochs=1, tune_every=0),
        engine=replace(short.engine, name="stacked", compile="off"),
    )


def write_synthetic(folder: Path, name: str) -> None:
    """Write a file of random samples with the shape and the classes of the dataset `name`."""
    if name not in SHAPES:
        raise RequestError(f"no synthetic data for {name}: available for {', '.join(SHAPES)}.")
    shape, dtype, classes = SHAPES[name]
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"label_names": np.array([f"class {k}" for k in range(classes)])}
    for part, count in (("train", BATCH * CLIENTS), ("test", BATCH)):
        values = draw.integers(0, 256, (count, *shape))
        arrays[f"x_{part}"] = (values if dtype == "uint8" else values / 255).astype(dtype)
        arrays[f"y_{part}"] = draw.integers(0, classes, count).astype(np.uint8)
    np.savez(folder / f"{name}.npz", **arrays)


def with_rounds(experiment: Experiment, rounds: int) -> Experiment:
    """The experiment with another number of rounds; everything measured in rounds is scaled as well."""

    def scaled(value: int) -> int:
        return max(1, round(value * rounds / experiment.rounds)) if value else 0

    evaluation, measure = experiment.evaluation, experiment.measure
    every = scaled(evaluation.every)
    stages = [
        {**row, "at": at, "schedule": with_thaw(row["schedule"], rounds / experiment.rounds)}
        for row, at in zip(experiment.then, stage_starts(experiment, rounds), strict=True)
    ]
    return replace(
        experiment,
        rounds=rounds,
        schedule=with_thaw(experiment.schedule, rounds / experiment.rounds),
        then=tuple(stages),
        evaluation=replace(
            evaluation, every=every, tune_every=-(-scaled(evaluation.tune_every) // every) * every
        ),
        measure=replace(
            measure,
            probe_every=scaled(measure.probe_every),
            features_every=scaled(measure.features_every),
        ),
        checkpoint=Checkpoints(0),
    )


def stage_starts(experiment: Experiment, rounds: int) -> list[int | float | None]:
    """The starts of the later stages in a run of `rounds` rounds, increasing and before its end."""
    starts: list[int | float | None] = []
    earliest = 1
    for number, row in enumerate(experiment.then):
        at = row["at"]
        if at is not None:
            scaled = round(experiment.start(at) * rounds / experiment.rounds)
            start = min(max(scaled, earliest), rounds - len(experiment.then) + number)
            earliest = start + 1
            at = at if at < 1 and start == round(at * rounds) else start
        starts.append(at)
    return starts


def with_thaw(schedule: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """The table [schedule] with the rounds in `thaw` times `factor`."""
    if "thaw" not in schedule:
        return dict(schedule)
    return {**schedule, "thaw": tuple(round(start * factor) for start in schedule["thaw"])}
