"""The table of methods: its rows, its ratios, and the order of the blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import product

import pytest
from tests.cli.command import kedge
from torch import Tensor

from kedge.algorithms import METHOD_FACTORIES as ALL
from kedge.algorithms import fedavg, fedprox
from kedge.bench import ratios
from kedge.bench.candidates import Candidate, candidates
from kedge.bench.engines import EngineSpeed
from kedge.bench.methods import MethodCost, method_costs
from kedge.bench.multiply_adds import multiply_adds
from kedge.bench.networks.setting import NETWORKS
from kedge.bench.networks.speeds import NetworkBench, NetworkSpeed
from kedge.bench.ratios import Ratio, ratios_to_base
from kedge.bench.rounds import Round
from kedge.bench.timing import Timing
from kedge.bench.workloads import METHODS, Workload
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Correction, Step
from kedge.core.errors import RequestError

SMALL = replace(METHODS, clients=3, per_round=2, samples=20)


@dataclass(frozen=True)
class FiveTimesMore(Correction):
    name = "slow"

    def loss(self, step: Step) -> Tensor:
        """Five different forward passes, which no compiler can merge."""
        leaves, total = step.anchor, step.out.logits.sum() * 0
        for number in range(5):
            leaves = {k: v + number * 1e-3 for k, v in leaves.items()}
            total = total + step.at(leaves).logits.sum()
        return 0 * total


def slow() -> Algorithm:
    return replace(fedavg(), corrections=(FiveTimesMore(),))


def refused() -> Algorithm:
    raise RequestError("not on this network")


BASE = Candidate("fedavg", fedavg)
COMMAND = import_module("kedge.cli.actions.bench")


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "BLOCK_ROUNDS", 2)


@pytest.mark.slow
@pytest.mark.usefixtures("short_blocks")
def test_a_method_that_does_more_shows_a_ratio_above_one() -> None:
    rows = [BASE, Candidate("slow", slow, 1.25), Candidate("refused", refused, 1.0)]
    said: list[str] = []
    timing = Timing(repeats=3, compiled=False, say=said.append)
    table = {cost.method: cost for cost in method_costs(rows, SMALL, timing)}
    assert list(table) == ["fedavg", "slow", "refused"]
    assert table["fedavg"].work == 1
    ratio = table["slow"].uncompiled
    assert ratio is not None
    assert ratio.low <= ratio.middle <= ratio.high
    assert ratio.middle > 1.2  # it takes about 2.5
    assert table["slow"].compiled is None
    assert table["slow"].holds is None
    assert table["refused"] == MethodCost("refused", None, None, None, 1.0, "not on this network")
    assert "methods: warming up slow (2 of 3)" in said
    assert said[-1] == "methods: measuring, turn 3 of 3"


def test_ratios_are_to_the_neighboring_blocks_of_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks A A A B A of 1, 1, 2, 9 and 4 s: FedAvg's row is 1/1.5, and B's 9/3, not 9/2 or 9/4."""
    seconds = iter([1.0, 1.0, 2.0, 9.0, 4.0])
    order: list[Round] = []

    def block_seconds(round: Round, device: str) -> float:
        order.append(round)
        return next(seconds)

    monkeypatch.setattr(ratios, "block_seconds", block_seconds)
    a: Callable[[int], int] = lambda number: 0  # noqa: E731
    b: Callable[[int], int] = lambda number: 1  # noqa: E731
    assert ratios_to_base({"fedavg": a, "b": b}, "cpu") == {"fedavg": 2 / 3, "b": 3.0}
    assert order == [a, a, a, b, a]


def test_a_bound_is_open_where_it_lies_between_the_quartiles() -> None:
    """FedAvg compared with itself, with a bound of 1, is open for every median near 1."""

    def cost(low: float, middle: float, high: float, bound: float | None) -> MethodCost:
        return MethodCost("m", 1.0, Ratio(middle, low, high), Ratio(3.0, 3.0, 3.0), bound)

    assert cost(1.1, 1.2, 1.25, 1.25).holds == "yes"
    assert cost(1.26, 1.3, 1.4, 1.25).holds == "no"
    assert cost(0.99, 1.01, 1.02, 1.0).holds == cost(0.98, 0.99, 1.01, 1.0).holds == "open"
    assert cost(1.1, 1.2, 1.3, None).holds is None


def test_every_method_and_every_phase_has_a_row() -> None:
    names = [row.name for row in candidates(units=4)]
    assert names[0] == "fedavg"
    assert len(names) == len(set(names))
    assert set(ALL) | {"fedbug+fedavg", "top-down+fedavg"} <= set(names)
    assert {f"{n}, phase {p} of 3" for n in ("vanilla", "anti") for p in (1, 2, 3)} <= set(names)
    assert all(row.make() for row in candidates(units=4))


def test_work_is_counted_forward_and_backward_and_less_where_layers_are_frozen() -> None:
    """Forward, a sample takes the multiply-adds of `layers`. The gradients of all weights take as many again,
    and so do the gradients of all inputs but the first. Anti's first phase needs the gradients of the last
    two layers' weights and of the last layer's input. A round's mean adds one for each of 13706 parameters.
    """
    layers = [9216, 73728, 8192, 640]
    forward, whole = sum(layers), 3 * sum(layers) - layers[0]
    anti = next(row for row in candidates(units=4) if row.name == "anti, phase 1 of 3").make()
    expected = [
        (fedavg(), whole),
        (fedprox(), whole),
        (anti, forward + layers[2] + 2 * layers[3]),
        (slow(), whole + 5 * forward),
    ]
    for algorithm, each in expected:
        assert multiply_adds(SMALL, algorithm) == each * SMALL.samples + 13706


@pytest.mark.slow
@pytest.mark.usefixtures("short_blocks")
def test_the_command_prints_the_table_and_json(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [BASE, Candidate("fedprox", fedprox, 1.25), Candidate("refused", refused)]
    monkeypatch.setattr(COMMAND, "candidates", lambda units: rows)
    monkeypatch.setattr(COMMAND, "METHODS", SMALL)
    words = ("bench", "methods", "--no-compile", "--repeats", "1")
    answer = kedge(*words, "--json")
    assert answer.code == 0
    assert "warming up fedprox" in answer.err
    document = answer.json()
    assert document["rows"] == []
    first, second, third = document["methods"]
    assert first["work"] == second["work"] == 1
    assert second["bound"] == 1.25
    assert second["uncompiled"]["middle"] > 0
    assert second["compiled"] is second["holds"] is None
    assert third["reason"] == "not on this network"
    out = kedge(*words).out
    assert "1.25×" in out
    assert "not on this network" in out


def test_without_arguments_the_methods_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def engine_speeds(work: Workload, timing: Timing) -> list[EngineSpeed]:
        measured.append(work.name)
        return []

    def network_speeds(bench: NetworkBench) -> Iterator[list[NetworkSpeed]]:
        measured.append("networks")
        yield from ()

    monkeypatch.setattr(COMMAND, "engine_speeds", engine_speeds)
    monkeypatch.setattr(NetworkBench, "speeds", network_speeds)
    monkeypatch.setattr(COMMAND, "method_costs", lambda *arguments: measured.append("methods"))
    assert kedge("bench", "--device", "cpu").code == 0
    assert measured == ["overhead", "compute", "networks"]


def test_without_arguments_a_gpu_is_asked_for_all_networks_and_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = NetworkSpeed("resnet18", 100, "captured", "bf16", 1, 2e5, 50.0, 0.9, 12_300_000_000, 7.0)

    def network_speeds(bench: NetworkBench) -> Iterator[list[NetworkSpeed]]:
        settings = {(setting.network, setting.clients) for setting in bench.settings}
        assert settings == set(product(NETWORKS, (1, 10, 100)))
        bench.rows.append(row)
        yield [row]

    monkeypatch.setattr("kedge.cli.actions.bench_plan.device_of", lambda choice: "cuda")
    monkeypatch.setattr(COMMAND, "engine_speeds", lambda *arguments: [])
    monkeypatch.setattr(NetworkBench, "speeds", network_speeds)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    answer = kedge("bench", "--device", "cuda", "--json")
    assert answer.code == 0, answer.err
    (found,) = answer.json()["networks"]
    assert (found["network"], found["clients"], found["memory"]) == ("resnet18", 100, 12_300_000_000)
    assert "12.30" in kedge("bench", "--device", "cuda").out
    assert "resnet18" not in kedge("bench", "overhead", "--device", "cuda").out


def test_what_is_measured_is_told_before_the_next_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> list[MethodCost]:
        raise RequestError("stopped")

    row = EngineSpeed("overhead", "plain loop", 1234.0, 1.0, 1.0, 0.5)
    monkeypatch.setattr(COMMAND, "engine_speeds", lambda *arguments: [row])
    monkeypatch.setattr(COMMAND, "method_costs", fail)
    answer = kedge("bench", "overhead", "methods", "--device", "cpu")
    assert answer.code == 2
    assert "1,234" in answer.out
