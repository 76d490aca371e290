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
Values = Mapping[str, Sequence[float]]  # by leaf, one for each client


def bed(clients: Sequence[str] = ("client1", "client2")) -> Bed:
    """The oracle's clients: `n` samples with the same `x` and `y`."""
    own = [
        Dataset(torch.full((one["n"], 1), float(one["x"])), torch.full((one["n"],), int(one["y"])))
        for one in (GIVEN[name] for name in clients)
    ]
    model = from_module(Product(GIVEN["s0"], GIVEN["p0"]))
    return Bed(model, federation_from_datasets(own, None).to("cpu", torch.float64), squared_error)


def compare_round(
    algorithm: Algorithm, clients: Values, server: Mapping[str, float], steps: int = 1
) -> Finding:
    """Compare both clients' s and p after a round of `steps` full-batch steps, and the server's leaves."""
    pairs = []
    for name, engine in ENGINES.items():
        (state,) = record_rounds(bed(), [(algorithm, 1)], LocalTraining(steps, 1000, LR), [[0, 1]], engine)
        for leaf, wanted in clients.items():
            for client, want in enumerate(wanted):
                own = state.memories[str(client)]["local"]
                got = own[leaf] if leaf in own else state.models(client)[leaf][-1]
                pairs.append(Pair(f"{name}, {leaf} of client {client}", want, float(got)))
        pairs += [
            Pair(f"{name}, the server's {k}", v, float(state.server.shared[k])) for k, v in server.items()
        ]
        kept = len(state.server.shared)
        pairs.append(Pair(f"{name}, leaves the server has", len(server), kept))
    return compare_numbers(pairs, TOLERANCE)


def by_leaf(rows: Sequence[Sequence[float]]) -> Values:
    """s and p of each client."""
    s, p = zip(*rows, strict=True)
    return {"s": s, "p": p}


def fedavg(algorithm: Algorithm) -> Finding:
    """All leaves are shared."""
    want = EXPECTED["fedavg"]
    return compare_round(
        algorithm, by_leaf(want["clients_(s,p)"]), {"s": want["server_s"], "p": want["server_p"]}
    )


def fedper(algorithm: Algorithm) -> Finding:
    """Clients keep their heads; the shared bodies take FedAvg's step."""
    want = EXPECTED["fedper"]
    bases = by_leaf(EXPECTED["fedavg"]["clients_(s,p)"])["s"]
    return compare_round(algorithm, {"s": bases, "p": want["local_heads_p"]}, {"s": want["server_s"]})


def lg_fedavg(algorithm: Algorithm, key: str) -> Finding:
    """Clients keep their bodies; the shared heads take FedAvg's step, and `key` names their mean."""
    want = EXPECTED["lg_fedavg"]
    heads = by_leaf(EXPECTED["fedavg"]["clients_(s,p)"])["p"]
    return compare_round(algorithm, {"s": want["local_bases_s"], "p": heads}, {"p": want[key]})


def fedrep(algorithm: Algorithm) -> Finding:
    """A step of the head, then a step of the body with the new head."""
    want = EXPECTED["fedrep"]
    clients = by_leaf(want["clients_(s,p) head step then base step"])
    assert list(clients["p"]) == want["local_heads_p"]
    return compare_round(algorithm, clients, {"s": want["server_s"]}, steps=2)


def fedbabu(algorithm: Algorithm) -> Finding:
    """The head keeps its start, on the clients and on the server."""
    want, head = EXPECTED["fedbabu"], GIVEN["p0"]
    clients = {"s": want["clients_s (head fixed at 0.5)"], "p": (head, head)}
    return compare_round(algorithm, clients, {"s": want["server_s"], "p": head})


def fedbabu_tuned(algorithm: Algorithm, what: Literal["all", "head", "body"]) -> Finding:
    """FedBABU's fine-tuning: one step from the newest body, of both parts or of one."""
    want = EXPECTED["fedbabu"]
    after = by_leaf(want["after_1_finetune_step_(s,p)"])
    start = {"s": [want["server_s"]] * 2, "p": [GIVEN["p0"]] * 2}
    opened = {"all": ("s", "p"), "head": ("p",), "body": ("s",)}[what]
    return compare_tuned(algorithm, what, {k: after[k] if k in opened else start[k] for k in start})


def fedper_tuned(algorithm: Algorithm) -> Finding:
    """FedPer's fine-tuning from the newest body and the client's head: s − η(ps − y)p, p − η(ps − y)s."""
    s, after = EXPECTED["fedper"]["server_s"], []
    for client, p in zip(("client1", "client2"), EXPECTED["fedper"]["local_heads_p"], strict=True):
        push = GIVEN["lr"] * (p * s - GIVEN[client]["y"])
        after.append((s - push * p, p - push * s))
    return compare_tuned(algorithm, "all", by_leaf(after))


def compare_tuned(algorithm: Algorithm, what: Literal["all", "head", "body"], expected: Values) -> Finding:
    """Compare both clients' copies after a step of fine-tuning, which must not change their memories."""
    place = bed()
    pairs = []
    for name, engine in ENGINES.items():
        order, own = train_cohorts(algorithm, place, [[0, 1]], engine)
        before = flatten(own.save())
        for client, params, _ in own.tune(order, [0, 1], Tune(1, what)):
            for leaf, values in expected.items():
                pairs.append(Pair(f"{name}, {leaf} of client {client}", values[client], float(params[leaf])))
        left = flatten(own.save())
        changed = [k for k in before | left if k not in left or max_difference(before[k], left[k])]
        pairs.append(Pair(f"{name}, memories changed", 0, len(changed)))
    return compare_numbers(pairs, TOLERANCE)


def train_cohorts(
    algorithm: Algorithm,
    place: Bed,
    cohorts: Sequence[Sequence[int]],
    engine: Callable[[Model, Federation], Engine],
) -> tuple[Order, Engine]:
    """Train rounds of one full-batch step with `cohorts`: the next order, and the engine with memories."""
    stage = Stage(replace(algorithm, loss=place.loss), len(cohorts), LocalTraining(1, 1000, LR))
    own = engine(place.model, place.federation)
    given = FixedCohorts(cohorts=tuple(tuple(cohort) for cohort in cohorts))
    server = run(Task((stage,), place.model, place.federation, given), own).server
    return Order(len(cohorts), len(cohorts), 0, server.shared, server.buffers, {}), own


def kept_leaf_waits(algorithm: Algorithm, kept: str) -> Finding:
    """A client keeps its leaf `kept` between its rounds. Before its first round it has the initial leaf.
    With one participant in a round, the server takes its whole step: s ← s − η(ps − y)p and p ← p − η(ps −
    y)s.
    """
    cohorts, place = [[0], [1], [0]], bed(("client1", "client2", "client2"))
    y = [GIVEN[name]["y"] for name in ("client1", "client2", "client2")]
    own: list[dict[str, float]] = [{"s": GIVEN["s0"], "p": GIVEN["p0"]} for _ in y]
    pairs = []
    for number, (client,) in enumerate(cohorts, 1):
        s, p = own[client]["s"], own[client]["p"]
        push = GIVEN["lr"] * (p * s - y[client])
        moved = {"s": s - push * p, "p": p - push * s}
        for one, values in enumerate(own):
            values |= {k: v for k, v in moved.items() if k != kept or one == client}
        for name, engine in ENGINES.items():
            order, trainer = train_cohorts(algorithm, place, cohorts[:number], engine)
            for one, values in enumerate(own):
                params, _ = trainer.personal(one, order.shared, order.buffers)
                pairs += [
                    Pair(f"{name}, round {number}, {k} of client {one}", v, float(params[k]))
                    for k, v in values.items()
                ]
    return compare_numbers(pairs, TOLERANCE)
