"""Oracle personalised_two_parameter of the specification: the prediction p·s·x with body s and head p.

A client's model consists of the server's shared leaves and of the leaves in the client's memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from kedge.audit.bed import Bed
from kedge.audit.finding import Finding, Pair, compare_numbers, max_difference
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.fedbug import Product, squared_error
from kedge.audit.recorded_run import FixedCohorts, record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm, LocalTraining, Stage, Tune
from kedge.core.model import Model
from kedge.core.optimizers import SGD
from kedge.core.tree import flatten
from kedge.data.dataset import Dataset
from kedge.data.federation import Federation, federation_from_datasets
from kedge.engines.engine import Engine, Order
from kedge.nn.from_module import from_module
from kedge.running.runner import run

GIVEN: Mapping[str, Any] = ORACLES["personalised_two_parameter"]["inputs"]
EXPECTED: Mapping[str, Any] = ORACLES["personalised_two_parameter"]["expected"]
LR = SGD(GIVEN["lr"])
Part = Literal["all", "head", "body"]
Values = Mapping[str, Sequence[float]]  # by leaf, one for each client


def bed(clients: Sequence[str] = ("client1", "client2")) -> Bed:
    """The oracle's clients: `n` samples with the same `x` and `y`."""
    datasets = [
        Dataset(torch.full((given["n"], 1), float(given["x"])), torch.full((given["n"],), int(given["y"])))
        for given in (GIVEN[name] for name in clients)
    ]
    model = from_module(Product(GIVEN["s0"], GIVEN["p0"]))
    return Bed(model, federation_from_datasets(datasets, None).to("cpu", torch.float64), squared_error)


def compare_round(
    algorithm: Algorithm, clients: Values, server: Mapping[str, float], steps: int = 1
) -> Finding:
    """Compare both clients' s and p after a round of `steps` full-batch steps, and the server's leaves."""
    pairs = []
    for name, engine in ENGINES.items():
        (state,) = record_rounds(bed(), [(algorithm, 1)], LocalTraining(steps, 1000, LR), [[0, 1]], engine)
        for leaf, expected_values in clients.items():
            for client, expected in enumerate(expected_values):
                kept = state.memories[str(client)]["local"]
                actual = kept[leaf] if leaf in kept else state.models(client)[leaf][-1]
                pairs.append(Pair(f"{name}, {leaf} of client {client}", expected, float(actual)))
        pairs += [
            Pair(f"{name}, the server's {k}", v, float(state.server.shared[k])) for k, v in server.items()
        ]
        pairs.append(Pair(f"{name}, number of shared leaves", len(server), len(state.server.shared)))
    return compare_numbers(pairs, TOLERANCE)


def by_leaf(rows: Sequence[Sequence[float]]) -> Values:
    """The (s, p) of each client, by leaf."""
    s, p = zip(*rows, strict=True)
    return {"s": s, "p": p}


def fedavg(algorithm: Algorithm) -> Finding:
    """All leaves are shared."""
    expected = EXPECTED["fedavg"]
    return compare_round(
        algorithm, by_leaf(expected["clients_(s,p)"]), {"s": expected["server_s"], "p": expected["server_p"]}
    )


def fedper(algorithm: Algorithm) -> Finding:
    """Clients keep their heads; the shared bodies take FedAvg's step."""
    expected = EXPECTED["fedper"]
    bases = by_leaf(EXPECTED["fedavg"]["clients_(s,p)"])["s"]
    return compare_round(algorithm, {"s": bases, "p": expected["local_heads_p"]}, {"s": expected["server_s"]})


def lg_fedavg(algorithm: Algorithm, key: str) -> Finding:
    """Clients keep their bodies; the shared heads take FedAvg's step, and `key` names their mean."""
    expected = EXPECTED["lg_fedavg"]
    heads = by_leaf(EXPECTED["fedavg"]["clients_(s,p)"])["p"]
    return compare_round(algorithm, {"s": expected["local_bases_s"], "p": heads}, {"p": expected[key]})


def fedrep(algorithm: Algorithm) -> Finding:
    """A step of the head, then a step of the body with the new head."""
    expected = EXPECTED["fedrep"]
    clients = by_leaf(expected["clients_(s,p) head step then base step"])
    assert list(clients["p"]) == expected["local_heads_p"]
    return compare_round(algorithm, clients, {"s": expected["server_s"]}, steps=2)


def fedbabu(algorithm: Algorithm) -> Finding:
    """The head keeps its start, on the clients and on the server."""
    expected, head = EXPECTED["fedbabu"], GIVEN["p0"]
    clients = {"s": expected["clients_s (head fixed at 0.5)"], "p": (head, head)}
    return compare_round(algorithm, clients, {"s": expected["server_s"], "p": head})


def fedbabu_tuned(algorithm: Algorithm, part: Part) -> Finding:
    """FedBABU's fine-tuning: one step from the newest body, of both parts or of one."""
    expected = EXPECTED["fedbabu"]
    after = by_leaf(expected["after_1_finetune_step_(s,p)"])
    start = {"s": [expected["server_s"]] * 2, "p": [GIVEN["p0"]] * 2}
    tuned = {"all": ("s", "p"), "head": ("p",), "body": ("s",)}[part]
    return compare_tuned(algorithm, part, {k: after[k] if k in tuned else start[k] for k in start})


def fedper_tuned(algorithm: Algorithm) -> Finding:
    """FedPer's fine-tuning from the newest body and the client's head: s − η(ps − y)p, p − η(ps − y)s."""
    s, after = EXPECTED["fedper"]["server_s"], []
    for client, p in zip(("client1", "client2"), EXPECTED["fedper"]["local_heads_p"], strict=True):
        factor = GIVEN["lr"] * (p * s - GIVEN[client]["y"])
        after.append((s - factor * p, p - factor * s))
    return compare_tuned(algorithm, "all", by_leaf(after))


def compare_tuned(algorithm: Algorithm, part: Part, expected: Values) -> Finding:
    """Compare both clients' copies after a step of fine-tuning, which must not change their memories."""
    pairs = []
    for name, engine in ENGINES.items():
        order, trainer = train_cohorts(algorithm, bed(), [[0, 1]], engine)
        before = flatten(trainer.save())
        for client, params, _ in trainer.tune(order, [0, 1], Tune(1, part)):
            for leaf, values in expected.items():
                pairs.append(Pair(f"{name}, {leaf} of client {client}", values[client], float(params[leaf])))
        after = flatten(trainer.save())
        changed = [k for k in before | after if k not in after or max_difference(before[k], after[k])]
        pairs.append(Pair(f"{name}, memories changed", 0, len(changed)))
    return compare_numbers(pairs, TOLERANCE)


def train_cohorts(
    algorithm: Algorithm,
    problem: Bed,
    cohorts: Sequence[Sequence[int]],
    engine: Callable[[Model, Federation], Engine],
) -> tuple[Order, Engine]:
    """Train rounds of one full-batch step with `cohorts`: the next order, and the engine with memories."""
    stage = Stage(replace(algorithm, loss=problem.loss), len(cohorts), LocalTraining(1, 1000, LR))
    trainer = engine(problem.model, problem.federation)
    participation = FixedCohorts(cohorts=tuple(tuple(cohort) for cohort in cohorts))
    server = run(Task((stage,), problem.model, problem.federation, participation), trainer).server
    return Order(len(cohorts), len(cohorts), 0, server.shared, server.buffers, {}), trainer


def kept_leaf_waits(algorithm: Algorithm, kept: str) -> Finding:
    """A client keeps its leaf `kept` between its rounds. Before its first round it has the initial leaf.

    With one participant, the server takes its whole step: s ← s − η(ps − y)p and p ← p − η(ps − y)s.
    """
    cohorts, problem = [[0], [1], [0]], bed(("client1", "client2", "client2"))
    y = [GIVEN[name]["y"] for name in ("client1", "client2", "client2")]
    models: list[dict[str, float]] = [{"s": GIVEN["s0"], "p": GIVEN["p0"]} for _ in y]
    pairs = []
    for number, (participant,) in enumerate(cohorts, 1):
        s, p = models[participant]["s"], models[participant]["p"]
        factor = GIVEN["lr"] * (p * s - y[participant])
        trained = {"s": s - factor * p, "p": p - factor * s}
        for client, model in enumerate(models):
            model |= {k: v for k, v in trained.items() if k != kept or client == participant}
        for name, engine in ENGINES.items():
            order, trainer = train_cohorts(algorithm, problem, cohorts[:number], engine)
            for client, model in enumerate(models):
                params, _ = trainer.personal(client, order.shared, order.buffers)
                pairs += [
                    Pair(f"{name}, round {number}, {k} of client {client}", v, float(params[k]))
                    for k, v in model.items()
                ]
    return compare_numbers(pairs, TOLERANCE)
