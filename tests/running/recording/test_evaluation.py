"""Every cell of the evaluation matrix equals the same number obtained in another way."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.contract.resuming import stop_after
from tests.running.plain_torch import (
    COHORTS,
    ENGINES,
    HEAD,
    LOCAL,
    NO_MOMENTUM,
    SIZES,
    TESTS,
    Kind,
    Witness,
    also,
    last_models,
    mean,
    module_of,
    on_common,
    on_own,
    start,
    task_of,
    trained,
)
from torch import Tensor, nn
from torch.nn import functional as F

from kedge.algorithms import METHOD_FACTORIES, fedavg, fedbug, feddyn, fedper, fedrod, scaffold
from kedge.algorithms.fix_last import fix_last
from kedge.algorithms.layer_expansion import vanilla
from kedge.audit.recorded_run import FixedCohorts
from kedge.core.algorithm import Algorithm, Tune
from kedge.core.errors import RequestError
from kedge.core.selections import everything
from kedge.core.tree import Leaves
from kedge.measure.last_models import LastModels
from kedge.running.progress import Interrupted
from kedge.running.runner import run

each_engine = pytest.mark.parametrize("kind", ENGINES)
EXACT = 1e-13


def near(left: Leaves, right: Leaves) -> bool:
    return all(torch.allclose(left[k], right[k], rtol=0, atol=EXACT) for k in right)


def watched(algorithm: Algorithm) -> Algorithm:
    return also(algorithm, LastModels(), Witness())


STAGES: dict[str, list[tuple[Algorithm, int]]] = {
    "fedavg": [(fedavg(), 4)],
    "feddyn": [(feddyn(0.1), 4)],
    "scaffold": [(scaffold(allow_momentum=True), 4)],
    "units open inside a round": [(fedbug(feddyn(0.1), 0.8), 4)],
    "units open with the rounds": [(replace(fedavg(), schedule=vanilla((0, 3))), 4)],
    "a unit never opens": [(replace(fedavg(), schedule=fix_last()), 4)],
    "across a switch": [(feddyn(0.1), 2), (fedavg(), 2)],
    "across a switch to a schedule": [(fedavg(), 1), (replace(fedavg(), schedule=fix_last()), 3)],
}


@pytest.mark.parametrize("name", STAGES)
@each_engine
def test_the_all_model_is_the_mean_of_all_clients_last_models(kind: Kind, name: str) -> None:
    """The witness stores the models; client 4 never takes part and has the initial model."""
    task = task_of(*((watched(algorithm), rounds) for algorithm, rounds in STAGES[name]))
    engine = kind(task.model, task.federation)
    progress = run(task, engine)
    by_hand = mean(last_models(engine, task))
    assert near(progress.server.slots["all"]["all"], by_hand)
    line = progress.history[-1]
    answer = module_of(by_hand)
    found = [line["all.global.accuracy"], line["all.global.loss"]]
    assert found == pytest.approx(on_common(answer, task), abs=1e-12)
    found = [line["all.local.accuracy"], line["all.local.loss"]]
    assert found == pytest.approx(on_own([answer] * len(SIZES), task), abs=1e-12)


@pytest.mark.parametrize("after", [1, 2, 3])
@each_engine
def test_the_all_model_resumes(kind: Kind, after: int, tmp_path: Path) -> None:
    task = task_of((watched(feddyn(0.1)), 2), (watched(fedavg()), 2))
    with pytest.raises(Interrupted):
        run(task, kind(task.model, task.federation), tmp_path, observer=stop_after(after))
    engine = kind(task.model, task.federation)
    run(task, engine, tmp_path)
    assert near(load_file(tmp_path / "all.safetensors"), mean(last_models(engine, task)))


SHARING = [
    name for name, make in METHOD_FACTORIES.items()
    if make().shared(made := task_of((make(), 1), local=NO_MOMENTUM).model) == everything(made)
]  # fmt: skip


@pytest.mark.parametrize("name", SHARING)
def test_where_all_is_shared_the_personal_model_is_the_distributed_one(name: str, tmp_path: Path) -> None:
    task = task_of((METHOD_FACTORIES[name](), 2), local=NO_MOMENTUM)
    progress = run(task, ENGINES[1](task.model, task.federation), tmp_path)
    for line in progress.history:
        for kind in ("accuracy", "loss"):
            assert line[f"personal.local.{kind}"] == line[f"distributed.local.{kind}"]
    for each in lines(tmp_path / "clients.jsonl"):
        assert each["personal.local.accuracy"] == each["distributed.local.accuracy"]


def test_most_methods_share_everything() -> None:
    assert {"fedavg", "feddyn", "scaffold", "fedbabu", "moon"} <= set(SHARING)
    assert not {"fedper", "lg-fedavg", "fedrep", "fedrod"} & set(SHARING)


@each_engine
def test_fedper_s_personal_model_is_the_newest_body_with_the_client_s_own_head(kind: Kind) -> None:
    """FedPer in plain torch: full batches, bodies averaged by size, every head kept."""
    task = task_of((fedper(), 4))
    progress = run(task, kind(task.model, task.federation))
    server, heads = start(task), [{k: start(task)[k] for k in HEAD} for _ in SIZES]
    for round, cohort in enumerate(COHORTS):
        after = {c: trained({**server, **heads[c]}, task, c, server, LOCAL.epochs, round) for c in cohort}
        weight = {c: SIZES[c] / sum(SIZES[i] for i in cohort) for c in cohort}
        for c in cohort:
            heads[c] = {k: after[c][k] for k in HEAD}
        body = [k for k in server if k not in HEAD]
        server |= {k: torch.stack([weight[c] * after[c][k] for c in cohort]).sum(0) for k in body}
    line = progress.history[-1]
    own = on_own([module_of({**server, **head}) for head in heads], task)
    assert [line["personal.local.accuracy"], line["personal.local.loss"]] == pytest.approx(own, abs=1e-12)
    common = on_own([module_of(server)] * len(SIZES), task)
    assert [line["distributed.local.accuracy"], line["distributed.local.loss"]] == pytest.approx(common)
    assert own != pytest.approx(common)


def rod(body: nn.Module, generic: nn.Module, own: Leaves) -> Any:
    """FedROD's prediction: generic logits plus logits of the personal head."""

    def answer(x: Tensor) -> Tensor:
        features = body(x)
        logits: Tensor = generic(features) + F.linear(
            features, own["personal.weight"].double(), own["personal.bias"].double()
        )
        return logits

    return answer


@each_engine
def test_fedrod_is_distributed_with_the_generic_logits_and_personal_with_the_personal_ones(
    kind: Kind,
) -> None:
    """The personal head of a client that never took part is a copy of the initial generic head."""
    task = task_of((fedrod(), 4))
    engine = kind(task.model, task.federation)
    progress = run(task, engine)
    module, saved, first = module_of(progress.server.shared), engine.save(), start(task)
    assert torch.equal(first["personal.weight"], first["4.weight"])
    heads = [saved[str(c)]["local"] if str(c) in saved else first for c in range(len(SIZES))]
    own = on_own([rod(module[:4], module[4], head) for head in heads], task)
    line = progress.history[-1]
    assert [line["personal.local.accuracy"], line["personal.local.loss"]] == pytest.approx(own, abs=1e-12)
    common = on_common(module, task)
    assert [line["distributed.global.accuracy"], line["distributed.global.loss"]] == pytest.approx(common)
    assert line["distributed.local.loss"] == pytest.approx(on_own([module] * len(SIZES), task)[1])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def weighted(values: list[float | None], clients: set[int]) -> float:
    """The mean over the test samples of these clients."""
    kept = [(TESTS[c], value) for c, value in enumerate(values) if value is not None and c in clients]
    return sum(n * value for n, value in kept) / sum(n for n, _ in kept)


@pytest.mark.parametrize("headline", ["all", "seen"])
@each_engine
def test_seen_and_unseen_are_means_of_what_clients_jsonl_has(
    kind: Kind, headline: Any, tmp_path: Path
) -> None:
    task = task_of((fedper(), 4), tune=Tune(2), tune_every=1, headline=headline)
    run(task, kind(task.model, task.federation), tmp_path)
    everybody, seen = set(range(len(SIZES))), set()
    for line, each in zip(lines(tmp_path / "history.jsonl"), lines(tmp_path / "clients.jsonl"), strict=True):
        assert line["round"] == each["round"]
        seen |= set(line["clients"])
        for name in ("personal.local.accuracy", "personal.local.accuracy.tuned"):
            assert each[name][2] is None  # it has no test
            assert line[f"{name}.seen"] == pytest.approx(weighted(each[name], seen))
            assert line[f"{name}.unseen"] == pytest.approx(weighted(each[name], everybody - seen))
            whole = seen if headline == "seen" else everybody
            assert line[name] == pytest.approx(weighted(each[name], whole))
    assert line["personal.local.accuracy.seen"] != line["personal.local.accuracy.unseen"]


def test_once_everybody_took_part_seen_is_not_told_apart() -> None:
    task = task_of((fedavg(), 1))
    whole = replace(task, participation=FixedCohorts(cohorts=((0, 1, 2, 3, 4),)))
    line = run(whole, ENGINES[0](task.model, task.federation)).history[-1]
    assert "personal.local.accuracy" in line
    assert not [name for name in line if name.endswith("seen")]


@each_engine
def test_a_resumed_run_knows_who_was_seen(kind: Kind, tmp_path: Path) -> None:
    """Client 0 takes part before the break and not after it."""
    task = task_of((fedavg(), 2))
    with pytest.raises(Interrupted):
        run(task, kind(task.model, task.federation), tmp_path, observer=stop_after(1))
    resumed = run(task, kind(task.model, task.federation), tmp_path)
    whole = run(task, kind(task.model, task.federation))
    assert resumed.seen == whole.seen == {0, 1, 3}
    for left, right in zip(resumed.history, whole.history, strict=True):
        assert {k: v for k, v in left.items() if k != "time"} == {
            k: v for k, v in right.items() if k != "time"
        }


def test_fine_tuning_between_evaluations_is_refused() -> None:
    with pytest.raises(RequestError, match="tune_every = 3: need a multiple of 2"):
        task_of((fedavg(), 4), tune_every=3, evaluate_every=2)


def test_a_client_without_a_test_counts_in_no_mean() -> None:
    task = task_of((fedper(), 2))
    data = task.federation
    none = tuple(np.empty(0, dtype=np.int64) for _ in SIZES)
    bare = replace(task, federation=replace(data, local_tests=none))
    line = run(bare, ENGINES[0](bare.model, bare.federation)).history[-1]
    assert not [name for name in line if ".local." in name]
