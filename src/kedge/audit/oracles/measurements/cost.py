"""Oracles layer_expansion_* and feddyn_to_fedavg_table2_cost, from the costs that runs' histories have.

The layer-expansion paper's table: its CNN for 28×28 images, 100 clients of 500 samples in batches of 10, 300
rounds. Vanilla and Anti are over FedBABU with thaw = (0, 100, 200), strict as the table counts.
"""

from collections.abc import Callable
from functools import cache
from statistics import mean

import numpy as np
import torch
from torch import nn

from kedge.algorithms import fedavg, fedbabu
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.audit.bed import ORACLES
from kedge.audit.finding import Finding, Pair, compared
from kedge.config.experiment import resolve
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, with_schedule
from kedge.core.sampling import Participation
from kedge.core.schedules import Clock
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation
from kedge.measure.cost.cost import Cost, relative_cost
from kedge.measure.cost.macs import chain_macs, forward_macs
from kedge.models.cnn import shallow_cnn
from kedge.nn.from_module import from_module, seeded
from kedge.running.recording.round_costs import predicted_lines

THAW = (0, 100, 200)
PHASES = (0, 100, 200)  # the first round of each, counted from 0
CLIENTS, EXAMPLES, BATCH, ROUNDS, ACTIVE = 100, 500, 10, 300, 10
LAYERS = ("conv1", "conv2", "fc1", "fc2")
PRICES = {"feddyn": 1.5, "fedavg": 1.0}  # of a round, as the switching paper takes them
LONG = 1000  # rounds of its table
METHODS: dict[str, Algorithm] = {
    "fedavg": fedavg(),
    "fedbabu": fedbabu(),
    "vanilla": with_schedule(fedbabu(), vanilla(THAW, strict=True), "vanilla"),
    "anti": with_schedule(fedbabu(), anti(THAW, strict=True), "anti"),
}


def network() -> nn.Module:
    """The layer-expansion paper's, for MNIST."""
    return shallow_cnn((1, 28, 28), 10)


@cache
def costs(algorithm: Algorithm, active: int) -> tuple[Cost, ...]:
    """Of every round. The clients may all hold the same samples: only how many there are counts."""
    pool = Dataset(torch.zeros(EXAMPLES, 1, 28, 28), torch.zeros(EXAMPLES, dtype=torch.int64))
    own, none = (np.arange(EXAMPLES),) * CLIENTS, (np.empty(0, dtype=np.int64),) * CLIENTS
    task = Task(
        (Stage(algorithm, ROUNDS, LocalTraining(1, BATCH)),),
        from_module(seeded(network, 0)),
        Federation(pool, own, none, None, 10),
        Participation(per_round=active),
    )
    return tuple(Cost(**line["cost"]) for line in predicted_lines(task))


def updated(algorithm: Algorithm, active: int = CLIENTS) -> int:
    """Parameters updated in all rounds; the paper lets all clients count, though ten train."""
    return sum(cost.updates for cost in costs(algorithm, active))


def papers_count() -> Finding:
    """Trainable parameters × batches × clients × rounds."""
    oracle = ORACLES["layer_expansion_cost_model"]
    given, want = oracle["inputs"], oracle["expected"]
    model = from_module(seeded(network, 0))
    params, _ = model.init(0)
    sizes = [sum(params[k].numel() for k in unit) for unit in model.units]
    pairs = [Pair(f"parameters of {k}", given["params"][k], n) for k, n in zip(LAYERS, sizes, strict=True)]
    pairs += [Pair("all parameters", want["total_params"], costs(METHODS["fedavg"], ACTIVE)[0].parameters)]
    pairs += [Pair("base parameters", want["base_params"], costs(METHODS["fedbabu"], ACTIVE)[0].parameters)]
    pairs += [Pair(k, want[k], updated(algorithm)) for k, algorithm in METHODS.items()]
    for name in ("vanilla", "anti"):
        own = [costs(METHODS[name], ACTIVE)[at].parameters for at in PHASES]
        both = zip(want[f"{name}_phase_params"], own, strict=True)
        pairs += [Pair(f"{name}, phase {phase}", e, got) for phase, (e, got) in enumerate(both, 1)]
    ten = want["fedavg_if_only_10_of_100_clients_train"]
    return compared([*pairs, Pair("fedavg, ten clients", ten, updated(METHODS["fedavg"], ACTIVE))], 0.0)


def literal_count() -> Finding:
    """The same with the algorithm's t ≥ t_k: phases of 99, 100 and 101 rounds."""
    want = ORACLES["layer_expansion_cost_model"]["expected"]
    (key,) = (k for k in want if k.startswith("vanilla_if_algorithm1"))
    late = {key: vanilla(THAW), "anti_literal": anti(THAW)}
    return compared(
        [Pair(k, want[k], updated(with_schedule(fedbabu(), schedule, k))) for k, schedule in late.items()],
        0.0,
    )


def true_compute() -> Finding:
    """Multiply-adds a sample, phase by phase: counted on the kernel, and by the formula for a chain."""
    oracle = ORACLES["layer_expansion_true_compute"]
    want = oracle["expected"]
    expected = {
        "fedavg": [want["fedavg"]] * 3,
        "fedbabu": [want["fedbabu (head gradient skipped)"]] * 3,
        "vanilla": want["vanilla_phases"],
        "anti": want["anti_phases"],
    }
    forward = list(forward_macs(seeded(network, 0), torch.zeros(1, 1, 28, 28)).values())
    given = oracle["inputs"]["forward_macs"]
    pairs = [Pair(f"forward, {k}", given[k], n) for k, n in zip(LAYERS, forward, strict=True)]
    for name, algorithm in METHODS.items():
        rounds = costs(algorithm, ACTIVE)
        seen = [rounds[at].macs / rounds[at].samples for at in PHASES]
        masks = [algorithm.schedule(Clock(at, at, 0, 50), len(LAYERS)) for at in PHASES]
        for phase, (e, counted, mask) in enumerate(zip(expected[name], seen, masks, strict=True), 1):
            pairs.append(Pair(f"{name}, phase {phase}", e, counted))
            pairs.append(Pair(f"{name}, phase {phase}, formula", e, chain_macs(forward, mask)))
        if f"{name}_mean_over_3_phases" in want:
            pairs.append(Pair(f"{name}, mean", want[f"{name}_mean_over_3_phases"], mean(seen)))
    return compared(pairs, 1e-8)


def communication() -> Finding:
    """Parameters sent down and up by ten clients in 300 rounds; four bytes each."""
    want = ORACLES["layer_expansion_communication"]["expected"]
    sent = {
        name: sum(cost.bytes_down + cost.bytes_up for cost in costs(algorithm, ACTIVE)) / 4
        for name, algorithm in METHODS.items()
    }
    return compared([Pair(name, want[name], sent[name]) for name in want], 0.0)


def switching() -> Finding:
    """The relative cost of FedDyn → FedAvg by the round of the switch: 1 + 0.5 · switch / 1000."""
    pairs = []
    ends = {"0": "fedavg", str(LONG): "feddyn"}
    for at, want in ORACLES["feddyn_to_fedavg_table2_cost"]["expected"].items():
        method = ends.get(at, f"feddyn -> fedavg@{at}")
        stages = resolve({"name": "table", "rounds": LONG, "method": method}).stages
        lengths = [rounds for _, _, rounds, _ in stages]
        got = relative_cost(lengths, [PRICES[method["name"]] for method, *_ in stages])
        pairs.append(Pair(f"switch after {at}", want, got))
    return compared(pairs, 1e-12)


def oracles() -> list[tuple[str, str, Callable[[], Finding]]]:
    """The specification's numbers of what training costs."""
    return [
        ("cost", "parameters updated", papers_count),
        ("cost", "parameters updated, t ≥ t_k", literal_count),
        ("cost", "multiply-adds a sample", true_compute),
        ("cost", "parameters sent", communication),
        ("cost", "switching's relative cost", switching),
    ]
