"""Oracles layer_expansion_* and feddyn_to_fedavg_table2_cost, against the costs in the histories of runs.

The table of the layer-expansion paper: its CNN for 28×28 images, 100 clients with 500 samples in batches of
10, 300 rounds. Vanilla and Anti are schedules over FedBABU with thaw = (0, 100, 200), with the table's strict
rule.
"""

from functools import cache
from statistics import mean

import numpy as np
import torch
from torch import nn

from kedge.algorithms import fedavg, fedbabu
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.audit.check import Entries
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.specification import ORACLES
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
PRICES = {"feddyn": 1.5, "fedavg": 1.0}  # of a round, in the paper about switching
LONG = 1000  # rounds in its table
METHODS: dict[str, Algorithm] = {
    "fedavg": fedavg(),
    "fedbabu": fedbabu(),
    "vanilla": with_schedule(fedbabu(), vanilla(THAW, strict=True), "vanilla"),
    "anti": with_schedule(fedbabu(), anti(THAW, strict=True), "anti"),
}


def network() -> nn.Module:
    """The network of the layer-expansion paper for MNIST."""
    return shallow_cnn((1, 28, 28), 10)


@cache
def costs(algorithm: Algorithm, active: int) -> tuple[Cost, ...]:
    """The cost of every round. All clients have the same samples, because only their number matters."""
    pool = Dataset(torch.zeros(EXAMPLES, 1, 28, 28), torch.zeros(EXAMPLES, dtype=torch.int64))
    rows, none = (np.arange(EXAMPLES),) * CLIENTS, (np.empty(0, dtype=np.int64),) * CLIENTS
    task = Task(
        (Stage(algorithm, ROUNDS, LocalTraining(1, BATCH)),),
        from_module(seeded(network, 0)),
        Federation(pool, rows, none, None, 10),
        Participation(per_round=active),
    )
    return tuple(Cost(**line["cost"]) for line in predicted_lines(task))


def total_updates(algorithm: Algorithm, active: int = CLIENTS) -> int:
    """Parameters updated in all rounds. The paper counts all clients, although ten train in a round."""
    return sum(cost.updates for cost in costs(algorithm, active))


def updated_parameters() -> Finding:
    """The paper's count: trainable parameters × batches × clients × rounds."""
    oracle = ORACLES["layer_expansion_cost_model"]
    given, expected = oracle["inputs"], oracle["expected"]
    model = from_module(seeded(network, 0))
    params, _ = model.init(0)
    sizes = [sum(params[k].numel() for k in unit) for unit in model.units]
    pairs = [Pair(f"parameters of {k}", given["params"][k], n) for k, n in zip(LAYERS, sizes, strict=True)]
    pairs += [
        Pair("all parameters", expected["total_params"], costs(METHODS["fedavg"], ACTIVE)[0].parameters)
    ]
    pairs += [
        Pair("base parameters", expected["base_params"], costs(METHODS["fedbabu"], ACTIVE)[0].parameters)
    ]
    pairs += [Pair(k, expected[k], total_updates(algorithm)) for k, algorithm in METHODS.items()]
    for name in ("vanilla", "anti"):
        counts = [costs(METHODS[name], ACTIVE)[round].parameters for round in PHASES]
        both = zip(expected[f"{name}_phase_params"], counts, strict=True)
        pairs += [Pair(f"{name}, phase {phase}", e, actual) for phase, (e, actual) in enumerate(both, 1)]
    ten = expected["fedavg_if_only_10_of_100_clients_train"]
    return compare_numbers(
        [*pairs, Pair("fedavg, ten clients", ten, total_updates(METHODS["fedavg"], ACTIVE))], 0.0
    )


def updated_parameters_literal() -> Finding:
    """The same count with the algorithm's rule t ≥ t_k: phases of 99, 100 and 101 rounds."""
    expected = ORACLES["layer_expansion_cost_model"]["expected"]
    (key,) = (k for k in expected if k.startswith("vanilla_if_algorithm1"))
    schedules = {key: vanilla(THAW), "anti_literal": anti(THAW)}
    return compare_numbers(
        [
            Pair(k, expected[k], total_updates(with_schedule(fedbabu(), schedule, k)))
            for k, schedule in schedules.items()
        ],
        0.0,
    )


def multiply_adds() -> Finding:
    """Multiply-adds for each sample in every phase: counted on the kernel, and by the formula for a chain."""
    oracle = ORACLES["layer_expansion_true_compute"]
    target = oracle["expected"]
    expected = {
        "fedavg": [target["fedavg"]] * 3,
        "fedbabu": [target["fedbabu (head gradient skipped)"]] * 3,
        "vanilla": target["vanilla_phases"],
        "anti": target["anti_phases"],
    }
    forward = list(forward_macs(seeded(network, 0), torch.zeros(1, 1, 28, 28)).values())
    given = oracle["inputs"]["forward_macs"]
    pairs = [Pair(f"forward, {k}", given[k], n) for k, n in zip(LAYERS, forward, strict=True)]
    for name, algorithm in METHODS.items():
        by_round = costs(algorithm, ACTIVE)
        per_sample = [by_round[round].macs / by_round[round].samples for round in PHASES]
        masks = [algorithm.schedule(Clock(round, round, 0, 50), len(LAYERS)) for round in PHASES]
        for phase, (e, counted, mask) in enumerate(zip(expected[name], per_sample, masks, strict=True), 1):
            pairs.append(Pair(f"{name}, phase {phase}", e, counted))
            pairs.append(Pair(f"{name}, phase {phase}, formula", e, chain_macs(forward, mask)))
        if f"{name}_mean_over_3_phases" in target:
            pairs.append(Pair(f"{name}, mean", target[f"{name}_mean_over_3_phases"], mean(per_sample)))
    return compare_numbers(pairs, 1e-8)


def communication() -> Finding:
    """Parameters of four bytes sent to and by ten clients in 300 rounds."""
    expected = ORACLES["layer_expansion_communication"]["expected"]
    sent = {
        name: sum(cost.bytes_down + cost.bytes_up for cost in costs(algorithm, ACTIVE)) / 4
        for name, algorithm in METHODS.items()
    }
    return compare_numbers([Pair(name, expected[name], sent[name]) for name in expected], 0.0)


def switching() -> Finding:
    """The relative cost of FedDyn → FedAvg by the round of the switch: 1 + 0.5 · switch / 1000."""
    pairs = []
    ends = {"0": "fedavg", str(LONG): "feddyn"}
    for at, expected in ORACLES["feddyn_to_fedavg_table2_cost"]["expected"].items():
        method = ends.get(at, f"feddyn -> fedavg@{at}")
        stages = resolve({"name": "table", "rounds": LONG, "method": method}).stages
        lengths = [rounds for _, _, rounds, _ in stages]
        actual = relative_cost(lengths, [PRICES[method["name"]] for method, *_ in stages])
        pairs.append(Pair(f"switch after {at}", expected, actual))
    return compare_numbers(pairs, 1e-12)


def oracle_checks() -> Entries:
    """Comparisons of costs with the specification's numbers."""
    return [
        ("cost", "parameters updated", updated_parameters),
        ("cost", "parameters updated, t ≥ t_k", updated_parameters_literal),
        ("cost", "multiply-adds a sample", multiply_adds),
        ("cost", "parameters sent", communication),
        ("cost", "switching's relative cost", switching),
    ]
