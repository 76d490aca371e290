"""Every schedule runs with every method; so do samples of triples, and many corrections at once.

Methods and schedules are the rows of METHOD_REGISTRY and SCHEDULE_REGISTRY, so that new rows are tested too.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from tests.contract.composing import (
    ENGINES,
    LOCAL,
    REFUSED,
    FinishedRun,
    assert_resumes,
    combine,
    compose,
    for_a_stage,
    task_of,
)
from tests.contract.problem import (
    ALL_CLIENTS,
    SOME_CLIENTS,
    TOLERANCE,
    disagreement,
    distance,
    federation,
    network,
)

from kedge.algorithms import METHOD_REGISTRY, SCHEDULE_REGISTRY
from kedge.audit.recorded_run import FixedCohorts
from kedge.audit.training import train_rounds
from kedge.config.task import Task
from kedge.core.correction import Correction
from kedge.core.errors import RequestError
from kedge.core.tree import Tree
from kedge.engines.sequential import Sequential

SMALL = {"moon": {"projection": 6}}  # a small projection
PAIRS = list(product(SCHEDULE_REGISTRY, METHOD_REGISTRY))
Triple = tuple[str, str, str]


def task_of_pair(schedule: str, method: str) -> Task:
    """Three rounds of a method under a schedule, assembled and checked as an experiment is."""
    task = task_of([compose(method, schedule, **SMALL.get(method, {}))], [len(SOME_CLIENTS)])
    return replace(
        task,
        participation=FixedCohorts(cohorts=tuple(map(tuple, SOME_CLIENTS))),
        evaluate_every=len(SOME_CLIENTS),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "schedule", "method"),
    [(number, *one) for number, one in enumerate(PAIRS) if one not in REFUSED],
    ids=["+".join(one) for one in PAIRS if one not in REFUSED],
)
def test_every_schedule_runs_over_every_method_the_engines_agree_and_it_resumes(
    number: int, schedule: str, method: str, tmp_path: Path
) -> None:
    task, which = task_of_pair(schedule, method), number % 2
    runs = [FinishedRun(task, engine) for engine in ENGINES]
    assert distance(runs[0].state, runs[1].state) < TOLERANCE
    assert_resumes(task, runs[which], ENGINES[which], tmp_path, after=1 + number // 2 % 2)


@pytest.mark.slow
def test_exactly_the_pairs_that_make_no_sense_are_refused_and_the_reason_is_given() -> None:
    reasons = {}
    for schedule, method in PAIRS:
        try:
            task_of_pair(schedule, method)
        except RequestError as error:
            reasons[schedule, method] = str(error)
    assert set(reasons) == REFUSED
    for (schedule, method), reason in reasons.items():
        assert reason.startswith(
            f"{schedule}+{method}: its schedule never trains the head, which the method must"
        )
        assert "Use another schedule, or a method such as fedbabu." in reason


def corrections(method: str) -> dict[str, Correction]:
    """A method's corrections by slot."""
    return {c.name: c for c in for_a_stage(method).corrections}


def sample_triples(pool: list[Triple], count: int = 14) -> list[Triple]:
    return Random(0).sample(sorted(pool), count)


def sampled_triples() -> list[tuple[str, Triple]]:
    """Random triples of each kind: two stages with a schedule, three stages, a schedule over two methods."""
    allowed = [one for one in PAIRS if one not in REFUSED]
    stages = [(schedule, first, second) for schedule, first in allowed for second in METHOD_REGISTRY]
    chains = list(product(METHOD_REGISTRY, METHOD_REGISTRY, METHOD_REGISTRY))
    over_two = [
        (schedule, first, second)
        for schedule, first, second in stages
        if corrections(second) and not corrections(first).keys() & corrections(second).keys()
    ]
    pools = {"stages": stages, "chain": chains, "over two": over_two}
    return [(kind, triple) for kind, pool in pools.items() for triple in sample_triples(pool)]


TRIPLES = list(enumerate(sampled_triples()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kind", "triple"),
    [(number, kind, triple) for number, (kind, triple) in TRIPLES],
    ids=[f"{kind}: {', '.join(triple)}" for _, (kind, triple) in TRIPLES],
)
def test_three_at_once_run_the_engines_agree_and_a_third_of_them_resumes(
    number: int, kind: str, triple: Triple, tmp_path: Path
) -> None:
    """A schedule over the first of two stages; three stages; a schedule over two methods' corrections."""
    a, b, c = triple
    if kind == "stages":
        task = task_of([for_a_stage(b, a), for_a_stage(c)], [2, 2])
    elif kind == "chain":
        task = task_of([for_a_stage(one) for one in triple], [2, 1, 1])
    else:
        task = task_of([combine(for_a_stage(b, a), for_a_stage(c))], [3])
    runs = [FinishedRun(task, engine) for engine in ENGINES]
    assert distance(runs[0].state, runs[1].state) < TOLERANCE
    if number % 3 == 0:
        which = number % 2
        assert_resumes(task, runs[which], ENGINES[which], tmp_path, after=1 + number // 6 % 2)


SEVEN = ("fedexp", "fedprox", "feddyn", "feddecorr", "fedntd", "moon", "fedavgm")
MANY = {
    "two": ("feddyn", "feddecorr"),
    "four": ("fedprox", "scaffold", "fedexp", "fedavgm"),
    "seven": SEVEN,
    "seven with control variates": ("scaffold", *(one for one in SEVEN if one != "feddyn")),
    "seven with heads of one's own": ("fedper", *SEVEN),
    "all there are": tuple(
        method
        for method in METHOD_REGISTRY
        if not any(
            corrections(method).keys() & corrections(one).keys() for one in METHOD_REGISTRY if one < method
        )
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("methods", MANY.values(), ids=MANY)
@pytest.mark.parametrize("schedule", ["all", "fedbug", "anti"])
def test_many_corrections_at_once_stay_finite_and_the_engines_agree(
    methods: tuple[str, ...], schedule: str
) -> None:
    algorithm = combine(for_a_stage(methods[0], schedule), *map(for_a_stage, methods[1:]))
    assert (
        disagreement(algorithm, LOCAL, network("batch", of=algorithm), federation(), SOME_CLIENTS) < TOLERANCE
    )


@pytest.mark.slow
def test_each_of_seven_corrections_at_once_has_its_effect() -> None:
    """Leaving one correction out changes the model by far more than the engines differ."""
    algorithm, data = combine(*map(for_a_stage, SEVEN)), federation()
    model = network("batch", of=algorithm)
    assert len(algorithm.corrections) == len(SEVEN)

    def shared(parts: tuple[Correction, ...]) -> dict[str, Tree]:
        changed = replace(algorithm, corrections=parts)
        return {
            "server": {
                "shared": train_rounds(
                    changed, LOCAL, Sequential(model, data), model, data, ALL_CLIENTS
                ).shared
            }
        }

    whole = shared(algorithm.corrections)
    for gone in algorithm.corrections:
        rest = shared(tuple(c for c in algorithm.corrections if c is not gone))
        assert distance(whole, rest) > 1e-7, gone.name
