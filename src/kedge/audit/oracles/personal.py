"""Oracle personalised_two_parameter of the specification: the prediction p·s·x, base s, head p, two clients.

A client's model is what the server sent, put together with what the client keeps; what stays with clients is
read from their memories.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from kedge.audit.bed import ORACLES, Bed, Given, moments
from kedge.audit.finding import Finding, Pair, apart, compared
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.oracles.fedbug import Product, squared
from kedge.audit.problems import ENGINES
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
Values = Mapping[str, Sequence[float]]  # by leaf, one a client


def bed(clients: Sequence[str] = ("client1", "client2")) -> Bed:
    """The oracle's clients: n samples of one x and y each."""
    own = [
        Dataset(torch.full((one["n"], 1), float(one["x"])), torch.full((one["n"],), int(one["y"])))
        for one in (GIVEN[name] for name in clients)
    ]
    model = from_module(Product(GIVEN["s0"], GIVEN["p0"]))
    return Bed(model, federation_from_datasets(own, None).to("cpu", torch.float64), squared)


def one_round(algorithm: Algorithm, clients: Values, server: Mapping[str, float], steps: int = 1) -> Finding:
    """Both clients' s and p after a round of so many full-batch steps, and what the server makes of them."""
    pairs = []
    for name, engine in ENGINES.items():
        (moment,) = moments(bed(), [(algorithm, 1)], LocalTraining(steps, 1000, LR), [[0, 1]], engine)
        for leaf, wanted in clients.items():
            for client, want in enumerate(wanted):
                own = moment.memories[str(client)]["local"]
                got = own[leaf] if leaf in own else moment.path(client)[leaf][-1]
                pairs.append(Pair(f"{name}, {leaf} of client {client}", want, float(got)))
        pairs += [
            Pair(f"{name}, the server's {k}", v, float(moment.server.shared[k])) for k, v in server.items()
        ]
        kept = len(moment.server.shared)
        pairs.append(Pair(f"{name}, leaves the server has", len(server), kept))
    return compared(pairs, TOLERANCE)


def both(rows: Sequence[Sequence[float]]) -> Values:
    """s and p of each client."""
    s, p = zip(*rows, strict=True)
    return {"s": s, "p": p}


def fedavg(algorithm: Algorithm) -> Finding:
    """Everything is shared."""
    want = EXPECTED["fedavg"]
    return one_round(algorithm, both(want["clients_(s,p)"]), {"s": want["server_s"], "p": want["server_p"]})


def fedper(algorithm: Algorithm) -> Finding:
    """The heads stay with the clients; their bases take FedAvg's step."""
    want = EXPECTED["fedper"]
    bases = both(EXPECTED["fedavg"]["clients_(s,p)"])["s"]
    return one_round(algorithm, {"s": bases, "p": want["local_heads_p"]}, {"s": want["server_s"]})


def lg_fedavg(algorithm: Algorithm, key: str) -> Finding:
    """The bases stay with the clients; their heads take FedAvg's step, and this key is their mean."""
    want = EXPECTED["lg_fedavg"]
    heads = both(EXPECTED["fedavg"]["clients_(s,p)"])["p"]
    return one_round(algorithm, {"s": want["local_bases_s"], "p": heads}, {"p": want[key]})


def fedrep(algorithm: Algorithm) -> Finding:
    """A step of the head, then one of the base with the new head."""
    want = EXPECTED["fedrep"]
    clients = both(want["clients_(s,p) head step then base step"])
    assert list(clients["p"]) == want["local_heads_p"]
    return one_round(algorithm, clients, {"s": want["server_s"]}, steps=2)


def fedbabu(algorithm: Algorithm) -> Finding:
    """The head is as it was, on the clients and on the server."""
    want, head = EXPECTED["fedbabu"], GIVEN["p0"]
    clients = {"s": want["clients_s (head fixed at 0.5)"], "p": (head, head)}
    return one_round(algorithm, clients, {"s": want["server_s"], "p": head})


def tuned(algorithm: Algorithm, what: Literal["all", "head", "body"]) -> Finding:
    """FedBABU, a step from the newest base: s and p both from the old values, so each alone as well."""
    want = EXPECTED["fedbabu"]
    after = both(want["after_1_finetune_step_(s,p)"])
    start = {"s": [want["server_s"]] * 2, "p": [GIVEN["p0"]] * 2}
    opened = {"all": ("s", "p"), "head": ("p",), "body": ("s",)}[what]
    return tuning(algorithm, what, {k: after[k] if k in opened else start[k] for k in start})


def tuned_with_own_head(algorithm: Algorithm) -> Finding:
    """FedPer, a step from the newest base and the client's head, by hand: s − η(ps − y)p, p − η(ps − y)s."""
    s, after = EXPECTED["fedper"]["server_s"], []
    for client, p in zip(("client1", "client2"), EXPECTED["fedper"]["local_heads_p"], strict=True):
        push = GIVEN["lr"] * (p * s - GIVEN[client]["y"])
        after.append((s - push * p, p - push * s))
    return tuning(algorithm, "all", both(after))


def tuning(algorithm: Algorithm, what: Literal["all", "head", "body"], expected: Values) -> Finding:
    """Both clients' copies after a round and a step of fine-tuning; what clients keep is what it was."""
    place = bed()
    pairs = []
    for name, engine in ENGINES.items():
        order, own = trained(algorithm, place, [[0, 1]], engine)
        before = flatten(own.save())
        for client, params, _ in own.tune(order, [0, 1], Tune(1, what)):
            for leaf, values in expected.items():
                pairs.append(Pair(f"{name}, {leaf} of client {client}", values[client], float(params[leaf])))
        left = flatten(own.save())
        changed = [k for k in before | left if k not in left or apart(before[k], left[k])]
        pairs.append(Pair(f"{name}, memories changed", 0, len(changed)))
    return compared(pairs, TOLERANCE)


def trained(
    algorithm: Algorithm,
    place: Bed,
    cohorts: Sequence[Sequence[int]],
    engine: Callable[[Model, Federation], Engine],
) -> tuple[Order, Engine]:
    """Rounds of one full-batch step with these participants: what would be sent next, and where they are."""
    stage = Stage(replace(algorithm, loss=place.loss), len(cohorts), LocalTraining(1, 1000, LR))
    own = engine(place.model, place.federation)
    given = Given(cohorts=tuple(tuple(cohort) for cohort in cohorts))
    server = run(Task((stage,), place.model, place.federation, given), own).server
    return Order(len(cohorts), len(cohorts), 0, server.shared, server.buffers, {}), own


def between(algorithm: Algorithm, mine: str) -> Finding:
    """One client a round: its own leaf waits for it, a client never asked has the initial one.

    By hand: s ← s − η(ps − y)p and p ← p − η(ps − y)s; of one participant the server takes the whole step.
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
            values |= {k: v for k, v in moved.items() if k != mine or one == client}
        for name, engine in ENGINES.items():
            order, there = trained(algorithm, place, cohorts[:number], engine)
            for one, values in enumerate(own):
                params, _ = there.personal(one, order.shared, order.buffers)
                pairs += [
                    Pair(f"{name}, round {number}, {k} of client {one}", v, float(params[k]))
                    for k, v in values.items()
                ]
    return compared(pairs, TOLERANCE)
