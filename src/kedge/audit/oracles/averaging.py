"""Oracles fedavg, fedprox and lr_decay of the specification, on bed Q."""

from collections.abc import Sequence

from kedge.audit.bed import ORACLES, Moment, bed_q, local_q, moments
from kedge.audit.finding import Finding, Pair, compared
from kedge.audit.problems import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.optimizers import SGD

TOLERANCE = 1e-12  # the printed digits are complete


def on_q(algorithm: Algorithm, local: LocalTraining, rounds: int = 1) -> dict[str, list[Moment]]:
    """Rounds of bed Q with both clients, on every engine."""
    cohorts = [[0, 1]] * rounds
    return {
        name: moments(bed_q(), [(algorithm, rounds)], local, cohorts, engine)
        for name, engine in ENGINES.items()
    }


def trajectories(algorithm: Algorithm, oracle: str) -> Finding:
    """Every local step of both clients."""
    expected: Sequence[Sequence[float]] = ORACLES[oracle]["expected"]["trajectories"]
    pairs = []
    for name, (moment,) in on_q(algorithm, local_q()).items():
        for client, path in enumerate(expected):
            got = moment.path(client)["w"][:, 0].tolist()
            for step, (want, have) in enumerate(zip(path[1:], got, strict=True), 1):
                pairs.append(Pair(f"{name}, client {client}, step {step}", want, have))
    return compared(pairs, TOLERANCE)


def server_values(algorithm: Algorithm, local: LocalTraining, expected: Sequence[float]) -> Finding:
    """The server's model after each round."""
    pairs = [
        Pair(f"{name}, round {number}", want, float(moment.server.shared["w"]))
        for name, seen in on_q(algorithm, local, len(expected)).items()
        for number, (want, moment) in enumerate(zip(expected, seen, strict=True), 1)
    ]
    return compared(pairs, TOLERANCE)


def fedavg_uniform(algorithm: Algorithm) -> Finding:
    """Two rounds with equal weights."""
    expected = ORACLES["fedavg"]["expected"]
    rounds = [expected["round1_uniform"], expected["round2_uniform_from_uniform_round1"]]
    return server_values(algorithm, local_q(), rounds)


def first_round(algorithm: Algorithm, oracle: str, key: str) -> Finding:
    """The first round's model, under this key of the oracle."""
    return server_values(algorithm, local_q(), [ORACLES[oracle]["expected"][key]])


def fedavg_weight_decay(algorithm: Algorithm) -> Finding:
    """Weight decay 0.01."""
    expected = ORACLES["fedavg"]["expected"]["round1_uniform_with_weight_decay_0.01"]
    return server_values(algorithm, local_q(0.01), [expected])


def fedavg_clip(algorithm: Algorithm) -> Finding:
    """Clip 1, then weight decay 0.01: the server and both clients."""
    expected = ORACLES["fedavg"]["expected"]
    pairs = []
    for name, (moment,) in on_q(algorithm, local_q(0.01, clip=1.0)).items():
        want = expected["round1_uniform_clip1_then_weight_decay_0.01"]
        pairs.append(Pair(f"{name}, server", want, float(moment.server.shared["w"])))
        for client, value in enumerate(expected["clients_clip1_then_wd"]):
            pairs.append(Pair(f"{name}, client {client}", value, float(moment.path(client)["w"][-1])))
    return compared(pairs, TOLERANCE)


def lr_decay() -> Finding:
    """η_t = η_0·decay^t at the rounds of the papers."""
    expected = ORACLES["lr_decay"]["expected"]
    device, silo = SGD(0.1, decay=0.999), SGD(0.1, decay=0.99)
    got = {
        "cross_device 0.1*0.999^999": device.rate(999),
        "cross_device at switch 750": device.rate(750),
        "cross_silo 0.1*0.99^299": silo.rate(299),
        "cross_silo at switch 225": silo.rate(225),
    }
    return compared([Pair(k, expected[k], got[k]) for k in expected], 1e-15)
