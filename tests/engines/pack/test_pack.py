"""Runs packed into one stack end as they would have alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from tests.engines.recorded import on_the_cpu
from torch import Tensor

from kedge.algorithms import METHOD_FACTORIES, fedavg, fedavgm, fedbug, feddyn, fedexp, fednova, scaffold
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.client import Carry
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.sampling import Participation
from kedge.core.server import Reply
from kedge.core.tree import flatten
from kedge.data.augment import Augment
from kedge.data.datasets import synthetic
from kedge.data.federation import Federation, federate
from kedge.data.partitions.partition import DirichletClasses
from kedge.engines.cuda.captured import captured_stack
from kedge.engines.engine import Order
from kedge.engines.pack.joint_planner import PendingRound
from kedge.engines.pack.pack import Pack
from kedge.engines.stack.direct import Direct
from kedge.engines.stack.stack_start import StackStart
from kedge.engines.stack.stacked import Stacked
from kedge.engines.sums import Sums
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded
from kedge.running.progress import Progress
from kedge.running.runner import rounds, run


def task_of(
    algorithm: Algorithm,
    seed: int,
    rounds: int = 3,
    lr: float = 0.05,
    augment: Augment = "none",
    data_seed: int = 0,
    after: Algorithm | None = None,
) -> Task:
    """Ragged clients, batch norm, a partition and a start of the seed's own."""
    source = synthetic(240, 4, (1, 8, 8), seed=data_seed)
    clients = DirichletClasses(6, 0.5, minimum=3)(source.train.y.numpy(), seed)
    data = replace(federate(source, clients, 0.2, seed).to("cpu", torch.float64), augment=augment)
    module = seeded(lambda: algorithm.rebuild(MODELS["small-cnn"]((1, 8, 8), 4, norm="batch")), seed)
    model = algorithm.adapt(from_module(module))
    local = LocalTraining(2, 16, SGD(lr, weight_decay=1e-3), clip=5.0)
    stages = [Stage(algorithm, rounds, local)] + ([Stage(after, 2, local)] if after else [])
    share = Participation("bernoulli", share=0.5)
    return Task(tuple(stages), model, data, share, seed=seed, tune=Tune(1))


Kind = Callable[[Model, Federation], Stacked]


def outcomes(tasks: list[Task], kind: Kind = Stacked) -> tuple[list[Progress | BaseException], Pack]:
    """The results or errors of runs in one pack."""
    engines = [kind(task.model, task.federation) for task in tasks]
    pack = Pack(engines, kind)
    ended: dict[int, Progress | BaseException] = {}
    runs = [rounds(task, engine) for task, engine in zip(tasks, engines, strict=True)]
    pack.train_runs(runs, ended.__setitem__)
    return [ended[number] for number in range(len(tasks))], pack


def train_pack(tasks: list[Task], kind: Kind = Stacked) -> tuple[list[Progress], Pack]:
    """The results of runs in one pack; raise the error of a run."""
    ended, pack = outcomes(tasks, kind)
    for end in ended:
        if isinstance(end, BaseException):
            raise end
    return [end for end in ended if isinstance(end, Progress)], pack


def state(progress: Progress) -> dict[str, Tensor]:
    line = {
        k: torch.tensor(v).double() for k, v in progress.history[-1].items() if k.endswith(("loss", "tuned"))
    }
    return {**flatten(progress.server._asdict()), **line}


def check(tasks: list[Task], kind: Kind = Stacked) -> Pack:
    found, pack = train_pack(tasks, kind)
    for task, progress in zip(tasks, found, strict=True):
        alone = run(task, Stacked(task.model, task.federation))
        left, right = state(alone), state(progress)
        assert set(left) == set(right)
        largest = max(float(v.abs().max()) for v in left.values())
        assert max(float((v - right[k]).abs().max()) for k, v in left.items()) < 1e-12 * largest
        assert [line["clients"] for line in alone.history] == [line["clients"] for line in progress.history]
    return pack


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "feddyn", "scaffold", "fedper"])
def test_graphs_of_several_runs(method: str) -> None:
    """The captured engine's own work in a pack, on stand-ins for graphs."""
    with on_the_cpu():
        pack = check(
            [task_of(METHOD_FACTORIES[method](), seed, augment="flip") for seed in range(3)], captured_stack
        )
    assert pack.stacks, "nothing was trained side by side"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stacked, captured_stack])
def test_a_run_that_diverges_leaves_the_others_alone(kind: Kind) -> None:
    wild = replace(task_of(fedavg(), 1, lr=1e200), on_divergence="drop")
    with on_the_cpu():
        found, _ = train_pack([task_of(fedavg(), 0), wild], kind)
    assert all(line["rejected"] for line in found[1].history)
    right = state(
        run(task_of(fedavg(), 0), Stacked(task_of(fedavg(), 0).model, task_of(fedavg(), 0).federation))
    )
    left = state(found[0])
    assert max(float((v - left[k]).abs().max()) for k, v in right.items()) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("method", METHOD_FACTORIES)
def test_seeds_of_every_method(method: str) -> None:
    pack = check([task_of(METHOD_FACTORIES[method](), seed) for seed in range(3)])
    assert pack.stacks, "nothing was trained side by side"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ["schedules", "augmented", "other data", "learning rates", "lengths", "methods", "stages"],
)
def test_runs_that_differ(case: str) -> None:
    bug, dyn = fedbug(feddyn(0.1), 0.8), feddyn(0.1)
    tasks = {
        "schedules": [task_of(bug, seed) for seed in range(3)],
        "augmented": [task_of(dyn, seed, augment="flip-crop") for seed in range(2)],
        "other data": [task_of(dyn, 1, data_seed=seed) for seed in range(2)],
        "learning rates": [task_of(dyn, 1, lr=lr) for lr in (0.02, 0.05)],
        "lengths": [task_of(dyn, seed, rounds=seed + 1) for seed in range(3)],
        "methods": [task_of(method, seed) for method in (fedavg(), scaffold()) for seed in range(2)],
        "stages": [task_of(dyn, seed, rounds=1 + seed, after=fedavg()) for seed in range(3)],
    }[case]
    check(tasks)


SERVER_RULES = (fedexp(), fedavg(), fedavgm(), fednova())  # their clients' steps are those of FedAvg


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Stacked, captured_stack])
def test_methods_with_the_same_steps_train_in_one_stack(kind: Kind) -> None:
    with on_the_cpu():
        pack = check([task_of(method, seed) for method in SERVER_RULES for seed in range(2)], kind)
    assert len(pack.stacks) == 1


@pytest.mark.slow
def test_two_rules_with_one_slot_train_in_stacks_of_their_own() -> None:
    pack = check([task_of(fedexp(rule=rule), 0) for rule in ("paper", "fedbug-code")] * 2)
    assert len(pack.stacks) == 2


@pytest.mark.slow
def test_an_upload_of_another_method_rejects_no_client() -> None:
    """The square of an update may overflow where the update does not; only FedExP sends that."""
    local = LocalTraining(1, 1000, SGD(1e200))
    far = [replace(task_of(method, 1, rounds=1), seed=1) for method in (fedavg(), fedexp(), fedavgm())]
    far = [
        replace(task, stages=tuple(replace(s, local=local) for s in task.stages), on_divergence="drop")
        for task in far
    ]
    found, pack = train_pack(far)
    assert len(pack.stacks) == 1
    for task, progress in zip(far, found, strict=True):
        alone = run(task, Stacked(task.model, task.federation))
        assert alone.history[0]["rejected"] == progress.history[0]["rejected"]
        left, right = (flatten(one.server.shared) for one in (alone, progress))
        assert all(torch.allclose(v, right[k], rtol=1e-12, atol=0) for k, v in left.items())
    assert [bool(one.history[0]["rejected"]) for one in found] == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("room", "alone"), [(8, 0), (4, 0), (3, 4 * 3)])
def test_memory_that_does_not_suffice_halves_the_pack(
    room: int, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to one run in the common stack; a run that does not fit there trains on its own engine."""
    four = Participation(per_round=4)
    tasks = [replace(task_of(fedavg(), seed), participation=four) for seed in range(4)]
    widths: list[int] = []
    by_themselves: list[Stacked] = []
    run_steps, train = Direct.run_steps, Stacked.train

    def short(
        self: Direct, stage: Stage, model: Model, data: Federation, start: StackStart, tuning: bool
    ) -> Carry:
        if start.per_row:
            widths.append(len(start.members))
            if widths[-1] > room:
                raise RuntimeError("broken off") from torch.OutOfMemoryError("as if")
        return run_steps(self, stage, model, data, start, tuning)

    def counted(self: Stacked, order: Order, clients: Sequence[int]) -> Sums:
        by_themselves.append(self)
        return train(self, order, clients)

    monkeypatch.setattr(Direct, "run_steps", short)
    monkeypatch.setattr(Stacked, "train", counted)
    pack = check(tasks)
    assert pack.rows.limited
    assert max(widths) == 16
    assert min(widths) == max(room, 4)
    assert sum(engine in pack.engines for engine in by_themselves) == alone


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler warns of torch itself
def test_a_compiled_pack_has_one_program_for_all_steps() -> None:
    """Before its first step, a client's parameters are the same tensors as its anchor."""
    tasks = [
        replace(task_of(fedavg(), seed, rounds=2), participation=Participation(per_round=1))
        for seed in (0, 1)
    ]
    module = [seeded(lambda: MODELS["mlp"]((1, 8, 8), 4, hidden=(8,)), seed) for seed in (0, 1)]
    small = [replace(task, model=from_module(own)) for task, own in zip(tasks, module, strict=True)]
    with torch._dynamo.config.patch(error_on_recompile=True):
        ended, pack = outcomes(small, lambda model, data: Stacked(model, data, backend=Direct(compile=True)))
    assert [type(end) for end in ended] == [Progress, Progress], ended
    assert pack.stacks[0][2].backend.pads_rows


def test_a_run_that_fails_leaves_the_others_alone() -> None:
    ended, _ = outcomes([task_of(fedavg(), 0), task_of(fedavg(), 1, lr=1e30)])
    assert "diverged" in str(ended[1])
    assert isinstance(ended[0], Progress)
    assert len(ended[0].history) == 3


def test_an_error_of_the_stack_reaches_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **named: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Pack, "train_side_by_side", broken)
    ended, _ = outcomes([task_of(fedavg(), seed) for seed in range(2)])
    assert [str(end) for end in ended] == ["broken", "broken"]


@pytest.mark.slow
def test_runs_whose_programs_differ_fail_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    train = Pack.train_side_by_side

    def broken(self: Pack, asked: Sequence[PendingRound]) -> list[Reply]:
        if asked[0].engine.stage.algorithm.name == "scaffold":
            raise RuntimeError("broken")
        return train(self, asked)

    monkeypatch.setattr(Pack, "train_side_by_side", broken)
    ended, _ = outcomes([task_of(method, seed) for method in (fedavg(), scaffold()) for seed in range(2)])
    assert [isinstance(end, Progress) for end in ended] == [True, True, False, False]
