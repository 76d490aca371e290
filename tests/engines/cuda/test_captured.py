"""The captured engine on a GPU: it agrees with the reference, repeats itself, resumes, halves if it must."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.resuming import stop_after
from tests.engines.recorded import on_the_cpu
from torch import Tensor
from torch.utils._pytree import tree_leaves

from kedge.algorithms import METHOD_FACTORIES as BUILT_IN
from kedge.algorithms import fedavg, fedbug, feddyn, scaffold
from kedge.algorithms.layer_expansion import vanilla
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.client import Carry
from kedge.core.errors import RequestError
from kedge.core.frozen import place_frozen
from kedge.core.optimizers import SGD, Adam, Optimizer
from kedge.core.sampling import Participation
from kedge.core.server import broadcast, initial_server
from kedge.core.tree import flatten, tree_to
from kedge.data.augment import Augment
from kedge.data.datasets import synthetic
from kedge.data.federation import federate
from kedge.data.partitions.partition import DirichletClasses
from kedge.engines.choice.choose import EngineOptions, choose
from kedge.engines.choice.trial import Work
from kedge.engines.cuda.captured import Captured, captured_stack
from kedge.engines.cuda.graphs import static_copies
from kedge.engines.engine import Engine, Order
from kedge.engines.pack.pack import Pack
from kedge.engines.pack.rows import RowCounts
from kedge.engines.sequential import Sequential
from kedge.engines.stack.stacked import Stacked
from kedge.models import MODELS
from kedge.nn.from_module import from_module, seeded
from kedge.nn.precision import DTYPES, Precision, computing_in, in_precision
from kedge.running.progress import Interrupted, Progress
from kedge.running.runner import rounds, run

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
METHODS: dict[str, Algorithm] = {
    **{name: build() for name, build in BUILT_IN.items()},
    "fedbug+feddyn": fedbug(feddyn(0.1)),
    "fedbug+scaffold": fedbug(scaffold()),
    "vanilla+fedavg": replace(fedavg(), schedule=vanilla((0, 1, 2))),
}


def task_of(
    algorithm: Algorithm,
    device: str,
    precision: Precision = "fp64",
    norm: str = "batch",
    augment: Augment = "none",
    local: LocalTraining | None = None,
    channels: int = 1,
    network: str = "small-cnn",
    hidden: tuple[int, ...] = (16, 12, 10),
    seed: int = 0,
    frozen: int = 0,
) -> Task:
    """Three rounds of ragged clients, four of six at a time; the first `frozen` parameters do not train."""
    source = synthetic(300, 4, (channels, 8, 8))
    clients = DirichletClasses(6, 0.5, minimum=3)(source.train.y.numpy(), 0)
    data = replace(federate(source, clients, 0.2).to(device, DTYPES[precision]), augment=augment)
    if channels > 1:
        data = replace(data, mean=(0.1, 0.2, 0.3), std=(0.9, 0.8, 0.7))
    options = {"norm": norm} if network == "small-cnn" else {"hidden": hidden}
    module = seeded(lambda: algorithm.rebuild(MODELS[network]((channels, 8, 8), 4, **options)), 0)
    for parameter in list(module.parameters())[:frozen]:
        parameter.requires_grad_(False)
    plain = place_frozen(algorithm.adapt(from_module(module)), DTYPES[precision], device)
    stage = Stage(algorithm, 3, local or LocalTraining(2, 16, SGD(0.05, weight_decay=1e-3), clip=5.0))
    return Task(
        (stage,), in_precision(plain, precision), data, Participation(per_round=4), tune=Tune(2),
        precision=precision, seed=seed,
    )  # fmt: skip


def final(task: Task, engine: Engine, folder: Path | None = None) -> dict[str, Tensor]:
    """The server and the metrics after the last round."""
    with computing_in(task.precision):
        ended = run(task, engine, folder)
    line = {
        k: torch.tensor(v).double() for k, v in ended.history[-1].items() if k.endswith(("loss", "tuned"))
    }
    return {k: v.cpu() for k, v in {**flatten(ended.server._asdict()), **line}.items()}


def captured(task: Task, chunk: int = 0, streams: int = 1) -> Stacked:
    return captured_stack(task.model, task.federation, chunk, task.participants, streams)


def relative_error(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    assert set(left) == set(right)
    largest = max(float(v.abs().max()) for v in left.values())
    return max(float((v - right[k]).abs().max()) for k, v in left.items()) / largest


def reference(task: Task) -> dict[str, Tensor]:
    return final(task, Sequential(task.model, task.federation))


def check_histories(method: str, device: str) -> None:
    histories: list[list[dict[str, Any]]] = []
    for place in ("cpu", device):
        one = task_of(METHODS[method], place)
        task = replace(one, stages=(replace(one.stages[0], rounds=6),))
        engine = Sequential(task.model, task.federation) if not histories else captured(task)
        histories.append(run(task, engine).history)
    assert len(histories[1]) == 6
    for left, right in zip(*histories, strict=True):
        names = [k for k, v in left.items() if isinstance(v, float)]
        assert any(k.endswith("loss") for k in names)
        assert all(abs(left[k] - right[k]) <= 1e-9 * max(1.0, abs(left[k])) for k in names)


class TestOnTheGPU:
    pytestmark = on_gpu

    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_agrees_with_the_reference(self, method: str) -> None:
        """On a network that compiles fast; convolutions and norms below."""
        tasks = [task_of(METHODS[method], where, network="mlp") for where in ("cpu", "cuda")]
        assert relative_error(reference(tasks[0]), final(tasks[1], captured(tasks[1]))) < 1e-10

    @pytest.mark.parametrize(
        "case",
        ["momentum", "adam", "augmented", "group norm", "chunked", "two streams", "four streams", "colours"],
    )
    def test_every_way_to_train_agrees_with_the_reference(self, case: str) -> None:
        optimizers: dict[str, Optimizer] = {"momentum": SGD(0.05, momentum=0.9), "adam": Adam(1e-3, eps=1e-3)}
        local = LocalTraining(2, 16, optimizers[case]) if case in optimizers else None
        norm = "batch" if case in ("augmented", "chunked") else "group"
        augment: Augment = "flip-crop" if case == "augmented" else "none"
        channels = 3 if case == "colours" else 1
        tasks = [
            task_of(feddyn(0.1), where, "fp64", norm, augment, local, channels) for where in ("cpu", "cuda")
        ]
        streams = {"two streams": 2, "four streams": 4}.get(case, 1)
        own = captured(tasks[1], chunk=3 if case == "chunked" else 0, streams=streams)
        assert relative_error(reference(tasks[0]), final(tasks[1], own)) < 1e-10

    @pytest.mark.parametrize("method", ["fedbug+scaffold", "moon", "fedrod", "fedtr", "fedbabu"])
    def test_a_frozen_backbone_agrees_with_the_reference(self, method: str) -> None:
        """The first two linear layers are frozen: one copy for all rows, in training and in evaluation."""
        tasks = [task_of(METHODS[method], where, network="mlp", frozen=4) for where in ("cpu", "cuda")]
        assert relative_error(reference(tasks[0]), final(tasks[1], captured(tasks[1]))) < 1e-10

    @pytest.mark.parametrize("streams", [1, 2])
    def test_frozen_convolutions_agree_with_the_reference(self, streams: int) -> None:
        """With batch norm: the statistics of frozen layers move. A part of the second unit trains."""
        tasks = [task_of(feddyn(0.1), where, frozen=5) for where in ("cpu", "cuda")]
        own = captured(tasks[1], streams=streams)
        assert relative_error(reference(tasks[0]), final(tasks[1], own)) < 1e-10

    @pytest.mark.parametrize("precision", ["tf32", "bf16"])
    def test_a_frozen_backbone_repeats_itself_and_stays_near_in_fast_precisions(
        self, precision: Precision
    ) -> None:
        exact = reference(task_of(fedavg(), "cpu", "fp64", "group", frozen=4))
        found = []
        for _ in "ab":
            task = task_of(fedavg(), "cuda", precision, "group", frozen=4)
            found.append(final(task, captured(task)))
        assert all(torch.equal(v, found[1][k]) for k, v in found[0].items())
        assert 1e-7 < relative_error(exact, found[0]) < 5e-2

    def test_packed_runs_have_their_own_frozen_weights(self) -> None:
        """Seeds with equal backbones share a stack, and each run ends as alone."""
        tasks = [task_of(fedavg(), "cuda", network="mlp", frozen=2, seed=seed) for seed in (0, 1)]
        pack = Pack([captured(task) for task in tasks], captured_stack)
        assert pack.frozen == [0, 0]
        ended: dict[int, Any] = {}
        pack.train_runs([rounds(t, e) for t, e in zip(tasks, pack.engines, strict=True)], ended.__setitem__)
        for number, task in enumerate(tasks):
            alone = run(task, captured(task))
            left, right = (flatten(one.server._asdict()) for one in (ended[number], alone))
            assert relative_error(left, right) < 1e-10

    def test_fp32_agrees_to_rounding(self) -> None:
        task = task_of(scaffold(), "cuda", "fp32", "group")
        assert (
            relative_error(
                reference(task_of(scaffold(), "cpu", "fp64", "group")), final(task, captured(task))
            )
            < 1e-4
        )

    @pytest.mark.parametrize(
        ("precision", "streams"),
        [("fp64", 1), ("fp32", 1), ("tf32", 1), ("bf16", 1), ("tf32", 2), ("bf16", 4)],
    )
    def test_a_run_repeats_itself_to_the_bit(self, precision: Precision, streams: int) -> None:
        first, second = (
            final(task, captured(task, streams=streams))
            for task in (task_of(feddyn(0.1), "cuda", precision) for _ in "ab")
        )
        assert all(torch.equal(v, second[k]) for k, v in first.items())

    @pytest.mark.parametrize(("precision", "streams"), [("tf32", 1), ("bf16", 1), ("tf32", 2), ("bf16", 4)])
    def test_fast_precisions_stay_near(self, precision: Precision, streams: int) -> None:
        exact = reference(task_of(fedavg(), "cpu", "fp64", "group"))
        task = task_of(fedavg(), "cuda", precision, "group")
        away = relative_error(exact, final(task, captured(task, streams=streams)))
        assert 1e-7 < away < 5e-2  # it did round, and no more than that

    def test_it_resumes_exactly(self, tmp_path: Path) -> None:
        whole = task_of(scaffold(), "cuda", "fp32")
        expected = final(whole, captured(whole))
        cut = replace(whole, stages=(replace(whole.stages[0], rounds=2),))
        final(cut, captured(cut), tmp_path)
        found = final(whole, captured(whole), tmp_path)
        assert all(torch.equal(v, found[k]) for k, v in expected.items())

    def test_checkpoints_are_written_while_graphs_of_the_next_stage_are_captured(
        self, tmp_path: Path
    ) -> None:
        """The state is so large that its thread still copies and writes it then. The run is also resumed."""
        one = task_of(scaffold(), "cuda", network="mlp", hidden=(4096, 512))
        stages = [replace(one.stages[0], rounds=2), Stage(fedavg(), 4, one.stages[0].local)]
        task = replace(one, stages=tuple(stages))
        whole = run(task, captured(task))
        with pytest.raises(Interrupted):  # at the end of the first stage one is written, and where it stops
            run(task, captured(task), tmp_path, 2, observer=stop_after(4))
        found = run(task, captured(task), tmp_path, 2)
        expected = flatten(whole.server._asdict())
        assert all(torch.equal(v, expected[k]) for k, v in flatten(found.server._asdict()).items())
        assert [line["round"] for line in found.history] == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("method", ["fedavg", "fedexp", "fedper"])
    def test_every_round_is_measured_as_in_the_reference(self, method: str) -> None:
        """Though the next one trains meanwhile; FedExP has a view that is computed when it is looked at."""
        check_histories(method, "cuda")

    def test_what_a_run_does_on_busy_does_not_wait_for_its_round(self) -> None:
        task = task_of(fedavg(), "cuda", local=LocalTraining(200, 16, SGD(0.001)))
        stage, engine = task.stages[0], captured(task)
        params, buffers = (tree_to(v, torch.float64, "cuda") for v in task.model.init(0))
        engine.begin(stage, params, frozenset())
        order, pending = Order(0, 0, 0, params, buffers, {}), []

        def work() -> None:
            assert float(sum(v.square().sum() for v in params.values())) > 0
            pending.append(not torch.cuda.default_stream().query())

        for _ in range(2):  # the first time all is compiled
            engine.overlap.on_busy = work
            engine.train(order, [0, 1, 2, 3])
        assert pending[-1]

    def test_kernels_lie_with_channels_last(self) -> None:
        given = {
            "kernel": torch.randn(2, 4, 3, 5, 5, device="cuda"),
            "bias": torch.randn(2, 4, device="cuda"),
        }
        placed = static_copies(given)
        assert torch.equal(placed["kernel"], given["kernel"])
        assert placed["kernel"].movedim(-3, -1).is_contiguous()
        assert placed["bias"].is_contiguous()

    def test_out_of_memory_halves_the_stack(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = task_of(fedavg(), "cuda")
        engine = captured(task)
        run_steps, tried = engine.backend.run_steps, []

        def short(*given: Any) -> Carry:
            tried.append(len(given[3].members))
            if tried[-1] > 2:
                raise torch.cuda.OutOfMemoryError("as if")
            return run_steps(*given)

        monkeypatch.setattr(engine.backend, "run_steps", short)
        assert relative_error(reference(task_of(fedavg(), "cpu")), final(task, engine)) < 1e-10
        assert engine.chunk == 2
        assert max(tried) == 4

    def test_where_memory_runs_out_packed_runs_go_on_in_halves(self) -> None:
        """Memory really runs out: the limit is halfway between the memory of two runs and of eight."""
        wide = (4096, 512)
        tasks = [task_of(feddyn(0.1), "cuda", network="mlp", hidden=wide, seed=seed) for seed in range(8)]

        def train_pack(most: int) -> tuple[list[dict[str, Tensor]], int, RowCounts]:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            engines = [captured(task) for task in tasks]
            pack = Pack(engines, captured_stack, most)
            ended: dict[int, Progress | BaseException] = {}
            runs = [rounds(task, engine) for task, engine in zip(tasks, engines, strict=True)]
            pack.train_runs(runs, ended.__setitem__)
            found = [ended[number] for number in range(len(tasks))]
            for end in found:
                if isinstance(end, BaseException):
                    raise end
            servers = [flatten(end.server._asdict()) for end in found if isinstance(end, Progress)]
            return servers, torch.cuda.max_memory_reserved(), pack.rows

        _, little, _ = train_pack(most=8)
        right, much, rows = train_pack(most=0)
        assert not rows.limited
        assert much > 1.3 * little, "the runs are too small for this test"
        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction((little + much) / 2 / total)
        try:
            found, most, rows = train_pack(most=0)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        assert 0 < rows.most < 32
        assert most <= (little + much) / 2
        for left, other in zip(right, found, strict=True):
            assert relative_error(left, other) < 1e-10


class TestAnywhere:
    """The engine's own work with stand-ins for graphs: exact, so a wrong address or order is found."""

    @pytest.mark.slow
    @pytest.mark.parametrize("streams", [1, 2])
    @pytest.mark.parametrize("method", METHODS)
    def test_every_method_agrees_with_the_reference(self, method: str, streams: int) -> None:
        task = task_of(METHODS[method], "cpu")
        with on_the_cpu():
            found = final(task, captured(task, streams=streams))
        assert relative_error(reference(task), found) < 1e-10

    @pytest.mark.parametrize("method", ["fedbug+scaffold", "moon", "fedrod", "fedbabu"])
    def test_a_frozen_backbone_agrees_with_the_reference(self, method: str) -> None:
        task = task_of(METHODS[method], "cpu", network="mlp", frozen=4)
        with on_the_cpu():
            found = final(task, captured(task))
        assert relative_error(reference(task), found) < 1e-10

    @pytest.mark.slow
    @pytest.mark.parametrize("streams", [1, 2])
    @pytest.mark.parametrize("method", ["fedavg", "moon", "fedbug+feddyn", "vanilla+fedavg", "fedper"])
    def test_weights_rounded_where_they_move_change_no_bit(
        self, method: str, streams: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also frozen weights, weights of the anchor, and weights over several rounds."""
        task = task_of(METHODS[method], "cpu", "bf16", "group")
        with on_the_cpu(trace_operators=True), computing_in("bf16"):
            engine = captured(task, streams=streams)
            found = final(task, engine)
            assert isinstance(engine.backend, Captured)
            assert engine.backend.lanes
            assert all(lanes.rounded for lanes in engine.backend.lanes.values())
            monkeypatch.setattr("kedge.engines.cuda.lanes.rounded_inputs", lambda graph, first: [])
            expected = final(task, captured(task, streams=streams))
        assert all(torch.equal(v, expected[k]) for k, v in found.items())

    def test_a_stack_lies_in_memory_once(self) -> None:
        """Initial parameters of rows are views of the server's; a round's end reads the lanes' tensors."""
        task = replace(task_of(scaffold(), "cpu", network="mlp"), tune="off")
        with on_the_cpu():
            engine = captured(task)
            ended = run(task, engine)
        shared, buffers = ended.server.shared, ended.server.buffers
        rows = engine.rows(Order(3, 3, 0, shared, buffers, broadcast(scaffold(), ended.server)), [0, 1, 2, 3])
        start = engine.start(task.stages[0], task.model, rows)
        assert all(v.untyped_storage().data_ptr() == shared[k].untyped_storage().data_ptr()
                   for k, v in start.carry["params"].items())  # fmt: skip
        assert isinstance(engine.backend, Captured)
        (lanes,), (end,) = engine.backend.lanes.values(), engine.backend.ends.values()
        read = tree_leaves(end.arguments[0])
        assert len(read) > 4
        assert all(own is place for own, place in zip(read, lanes.tensors(), strict=True))

    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["fedavg", "fedexp", "fedper"])
    def test_every_round_is_measured_as_in_the_reference(self, method: str) -> None:
        with on_the_cpu():
            check_histories(method, "cpu")

    @pytest.mark.slow
    def test_a_run_of_stages_that_saves_beside_them_goes_on(self, tmp_path: Path) -> None:
        one = task_of(scaffold(), "cpu")
        stages = [replace(one.stages[0], rounds=2), Stage(fedavg(), 4, one.stages[0].local)]
        task = replace(one, stages=tuple(stages))
        with on_the_cpu():
            whole = run(task, captured(task))
            with pytest.raises(Interrupted):
                run(task, captured(task), tmp_path, 1, observer=stop_after(4))
            found = run(task, captured(task), tmp_path, 1)
        expected = flatten(whole.server._asdict())
        assert all(torch.equal(v, expected[k]) for k, v in flatten(found.server._asdict()).items())

    @pytest.mark.slow
    @pytest.mark.parametrize("tuning", [False, True], ids=["training", "fine-tuning"])
    def test_memory_that_does_not_suffice_halves_the_stack(
        self, tuning: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The out-of-memory error may be only the cause of the error that a failed capture raises."""
        task = task_of(scaffold(), "cpu")
        with on_the_cpu():
            engine = captured(task)
            run_steps, tried = engine.backend.run_steps, []

            def short(*given: Any) -> Carry:
                if given[4] == tuning:
                    tried.append(len(given[3].members))
                    if tried[-1] > 2:
                        raise RuntimeError("broken off") from torch.OutOfMemoryError("as if")
                return run_steps(*given)

            monkeypatch.setattr(engine.backend, "run_steps", short)
            found = final(task, engine)
        assert relative_error(reference(task), found) < 1e-10
        assert max(tried) > 2
        assert engine.chunk <= 2

    def test_other_errors_of_fine_tuning_are_raised(self, monkeypatch: pytest.MonkeyPatch) -> None:
        task = task_of(fedavg(), "cpu")
        with on_the_cpu():
            engine = captured(task)

            def broken(*args: Any, **kwargs: Any) -> Carry:
                raise RuntimeError("broken")

            server = initial_server(fedavg(), task.model, *task.model.init(0))
            order = Order(0, 0, 0, server.shared, server.buffers, {})
            engine.begin(task.stages[0], server.shared, frozenset())
            monkeypatch.setattr(engine.backend, "run_steps", broken)
            with pytest.raises(RuntimeError, match="broken"):
                list(engine.tune(order, [0, 1], Tune(1)))

    @pytest.mark.slow
    @pytest.mark.parametrize("case", ["augmented", "chunked", "colours", "adam"])
    def test_every_way_to_train_agrees_with_the_reference(self, case: str) -> None:
        local = LocalTraining(2, 16, Adam(1e-3, eps=1e-3)) if case == "adam" else None
        augment: Augment = "flip-crop" if case == "augmented" else "none"
        task = task_of(feddyn(0.1), "cpu", "fp64", "batch", augment, local, 3 if case == "colours" else 1)
        with on_the_cpu():
            found = final(task, captured(task, chunk=3 if case == "chunked" else 0))
        assert relative_error(reference(task), found) < 1e-10

    def test_without_cuda_it_says_so(self) -> None:
        task = task_of(fedavg(), "cpu")
        with pytest.raises(RequestError, match="needs a CUDA device"):
            captured_stack(task.model, task.federation)

    def test_without_cuda_the_choice_falls_back_and_says_so(self) -> None:
        task = task_of(fedavg(), "cpu")
        said: list[str] = []
        choice = choose(
            Work(task.model, task.federation, task.stages[0], 4, 3), EngineOptions("captured"), said.append
        )
        assert choice.name in ("sequential", "stacked")
        assert "needs a CUDA device" in said[0]
