"""Fine-tuned personal models equal plain torch.optim's, and fine-tuning leaves the run unchanged."""

import hashlib
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tests.contract.problem import network as deep
from tests.quick import METHODS, cases, every
from tests.running.plain_torch import (
    ENGINES,
    HEAD,
    NO_MOMENTUM,
    SIZES,
    Kind,
    federation,
    module_of,
    on_own,
    task_of,
    trained,
)
from tests.running.recording.test_evaluation import rod
from torch import nn
from torch.nn import functional as F

import kedge
from kedge.algorithms import METHOD_FACTORIES, fedavg, fedbabu, fedbug, feddyn, fedper, fedrod
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, Stage, Tune
from kedge.data.federation import Federation
from kedge.running.runner import run

each_engine = pytest.mark.parametrize("kind", ENGINES)
What = Literal["all", "head", "body"]
WHATS: tuple[What, ...] = ("all", "head", "body")


def moving(what: What) -> list[str]:
    names = list(nn_names())
    return {"all": names, "head": list(HEAD), "body": [k for k in names if k not in HEAD]}[what]


def nn_names() -> list[str]:
    return [k for unit in task_of((fedavg(), 1)).model.units for k in unit]


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize(
    "algorithm",
    every(2, [feddyn(0.1), fedavg(), fedper(), fedbug(fedavg(), 0.8), fedbabu()]),
    ids=lambda a: a.name,
)
@each_engine
def test_the_tuned_model_is_plain_sgd_from_the_newest_one(
    kind: Kind, algorithm: Algorithm, what: What
) -> None:
    """With the learning rate of the last round, full batches, and no correction or schedule."""
    task = task_of((algorithm, 3), tune=Tune(4, what))
    engine = kind(task.model, task.federation)
    progress = run(task, engine)
    server, saved = progress.server, engine.save()
    answers = []
    for c in range(len(SIZES)):
        own = saved[str(c)]["local"] if str(c) in saved else {}
        whole = {**server.own, **own, **server.shared}
        answers.append(module_of(trained(whole, task, c, moving(what), 4, round=2)))
    line = progress.history[-1]
    found = [line["personal.local.accuracy.tuned"], line["personal.local.loss.tuned"]]
    assert found == pytest.approx(on_own(answers, task), abs=1e-12)
    assert line["personal.local.loss.tuned"] != pytest.approx(line["personal.local.loss"])
    assert line["personal.local.loss.tuned.unseen"] == pytest.approx(on_own(answers, task, [2, 4])[1])


@pytest.mark.parametrize("what", WHATS)
@each_engine
def test_fedrod_is_tuned_with_its_own_loss(kind: Kind, what: What) -> None:
    """Balanced softmax on body and generic head; the personal head trains unless only the body trains."""
    local = replace(NO_MOMENTUM, clip=None)
    task = task_of((fedrod(), 3), local=local, tune=Tune(3, what))
    engine = kind(task.model, task.federation)
    progress = run(task, engine)
    saved, answers = engine.save(), []
    for c in range(len(SIZES)):
        module = module_of(progress.server.shared)
        kept = saved[str(c)]["local"] if str(c) in saved else progress.server.own
        own = {k: v.clone().requires_grad_(what != "body") for k, v in kept.items()}
        for k, p in module.named_parameters():
            p.requires_grad_(k in moving(what))
        every = [p for p in (*module.parameters(), *own.values()) if p.requires_grad]
        step = torch.optim.SGD(every, 0.3 * 0.8**2, weight_decay=0.01)
        index = torch.from_numpy(task.federation.clients[c])
        x, y = task.federation.pool.x[index].double(), task.federation.pool.y[index]
        prior = torch.bincount(y, minlength=3).double().clamp_min(1e-9).log()
        for _ in range(3):
            step.zero_grad()
            features = module[:4](x)
            generic = module[4](features)
            second = F.linear(features.detach(), own["personal.weight"], own["personal.bias"])
            loss = F.cross_entropy(generic + prior, y) + F.cross_entropy(generic.detach() + second, y)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            step.step()
        answers.append(rod(module[:4], module[4], own))
    line = progress.history[-1]
    found = [line["personal.local.accuracy.tuned"], line["personal.local.loss.tuned"]]
    assert found == pytest.approx(on_own(answers, task), abs=1e-12)


def test_by_default_only_fedbabu_is_tuned_and_after_the_last_round() -> None:
    for algorithm, tuned in ((fedbabu(), [False, False, True]), (fedavg(), [False] * 3)):
        task = task_of((algorithm, 3))
        history = run(task, ENGINES[0](task.model, task.federation)).history
        assert ["personal.local.accuracy.tuned" in line for line in history] == tuned
    task = task_of((fedbabu(), 3), tune="off")
    history = run(task, ENGINES[0](task.model, task.federation)).history
    assert not any("tuned" in name for line in history for name in line)


def left_behind(folder: Path) -> tuple[dict[str, str], list[dict[str, Any]], list[dict[str, Any]]]:
    """Checksums of models and memories; history and clients' values without fine-tuned metrics."""
    binary = sorted(folder.rglob("*.safetensors"))
    sums = {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in binary}

    def tuned_values(name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        return [{k: v for k, v in line.items() if "tuned" not in k and k != "time"} for line in lines]

    return sums, tuned_values("history.jsonl"), tuned_values("clients.jsonl")


@pytest.mark.parametrize("name", every(3, ["fedper", "fedavg", "scaffold", "moon", "fedrod"]))
@each_engine
def test_fine_tuning_leaves_no_trace(kind: Kind, name: str, tmp_path: Path) -> None:
    """Local batch-norm statistics, dropout, memories and shuffled batches could all depend on fine-tuning."""
    algorithm = METHOD_FACTORIES[name](**({"projection": 0} if name == "moon" else {}))
    data = images()
    found = []
    for interval in (0, 1):
        model = deep("batch", "local", dropout=0.2, of=algorithm)
        stage = Stage(algorithm, 2, replace(NO_MOMENTUM, batch=4))
        task = Task((stage,), model, data, tune=Tune(2) if interval else "off", tune_every=interval)
        folder = tmp_path / str(interval)
        folder.mkdir()
        run(task, kind(model, data), folder)
        found.append(left_behind(folder))
    assert len(found[0][0]) >= 3
    assert found[0] == found[1]


def images() -> Federation:
    """The federation with its six inputs as 4×4 images, padded with zeros."""
    data = federation()
    pool = kedge.Dataset(F.pad(data.pool.x, (0, 10)).view(-1, 1, 4, 4), data.pool.y)
    assert data.test is not None
    test = kedge.Dataset(F.pad(data.test.x, (0, 10)).view(-1, 1, 4, 4), data.test.y)
    return replace(data, pool=pool, test=test)


@pytest.mark.parametrize(
    ("name", "what"),
    cases(
        [
            *((name, "all") for name in METHOD_FACTORIES),
            *product(("fedavg", "fedper", "fedrod"), ("head", "body")),
        ],
        product(METHODS, WHATS),
    ),
)
def test_engines_agree_on_what_was_tuned(name: str, what: What) -> None:
    algorithm, data = METHOD_FACTORIES[name](), images()
    model = deep("batch", of=algorithm)
    task = Task((Stage(algorithm, 1, replace(NO_MOMENTUM, batch=4)),), model, data, tune=Tune(2, what))
    one, other = (run(task, kind(model, data)).history[-1] for kind in ENGINES)
    tuned = [k for k in one if "tuned" in k]
    assert {"personal.local.accuracy.tuned", "personal.local.loss.tuned"} <= set(tuned)
    assert [one[k] for k in tuned] == pytest.approx([other[k] for k in tuned], rel=1e-12, abs=1e-12)


def test_train_fine_tunes_as_asked() -> None:
    """Three epochs of the last layer by hand, from the returned model."""
    draw = torch.Generator().manual_seed(0)
    sets = [
        kedge.Dataset(torch.randn(n, 6, generator=draw), torch.randint(0, 3, (n,), generator=draw))
        for n in (8, 5, 6, 4)
    ]
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    result = kedge.train(
        module, sets[:2], local_tests=sets[2:], tune=kedge.Tune(3, "head"), rounds=2, precision="fp64",
        optimizer=kedge.SGD(0.5), engine="sequential",
    )  # fmt: skip
    assert "personal.local.accuracy.tuned" not in result.history[0]
    total = 0.0
    for own, test in zip(sets[:2], sets[2:], strict=True):
        module.load_state_dict(result.model)
        step = torch.optim.SGD(module[2].parameters(), 0.5)
        for _ in range(3):
            step.zero_grad()
            loss = F.cross_entropy(module(own.x.double()), own.y)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            step.step()
        total += float(F.cross_entropy(module(test.x.double()), test.y, reduction="sum").detach())
    assert result.metric("personal.local.loss.tuned").last == pytest.approx(total / 10, rel=1e-12)
    every = kedge.train(module, sets[:2], local_tests=sets[2:], tune=kedge.Tune(1), tune_every=1, rounds=2)
    assert all("personal.local.accuracy.tuned" in line for line in every.history)
