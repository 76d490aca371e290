"""Oracles fedavg and fedprox of the specification, on bed Q."""

from collections.abc import Sequence

from kedge.audit.bed import bed_q, local_q
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.recorded_run import RoundState, record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining

TOLERANCE = 1e-12  # the printed digits are complete


def run_bed_q(algorithm: Algorithm, local: LocalTraining, rounds: int = 1) -> dict[str, list[RoundState]]:
    """The states after each round of bed Q with both clients, by engine."""
    cohorts = [[0, 1]] * rounds
    return {
        name: record_rounds(bed_q(), [(algorithm, rounds)], local, cohorts, engine)
        for name, engine in ENGINES.items()
    }


def local_steps(algorithm: Algorithm, oracle: str) -> Finding:
    """Both clients' models after every local step."""
    expected: Sequence[Sequence[float]] = ORACLES[oracle]["expected"]["trajectories"]
    pairs = []
    for name, (state,) in run_bed_q(algorithm, local_q()).items():
        for client, path in enumerate(expected):
            models = state.models(client)["w"][:, 0].tolist()
            for step, (target, actual) in enumerate(zip(path[1:], models, strict=True), 1):
                pairs.append(Pair(f"{name}, client {client}, step {step}", target, actual))
    return compare_numbers(pairs, TOLERANCE)


def compare_server(algorithm: Algorithm, local: LocalTraining, expected: Sequence[float]) -> Finding:
    """Compare the server's model after each round with `expected`."""
    pairs = [
        Pair(f"{name}, round {number}", target, float(state.server.shared["w"]))
        for name, states in run_bed_q(algorithm, local, len(expected)).items()
        for number, (target, state) in enumerate(zip(expected, states, strict=True), 1)
    ]
    return compare_numbers(pairs, TOLERANCE)


def fedavg_uniform(algorithm: Algorithm) -> Finding:
    """Two rounds with equal weights."""
    expected = ORACLES["fedavg"]["expected"]
    rounds = [expected["round1_uniform"], expected["round2_uniform_from_uniform_round1"]]
    return compare_server(algorithm, local_q(), rounds)


def first_round(algorithm: Algorithm, oracle: str, key: str) -> Finding:
    """The server's model after the first round, against the value `key` of the oracle."""
    return compare_server(algorithm, local_q(), [ORACLES[oracle]["expected"][key]])


def fedavg_weight_decay(algorithm: Algorithm) -> Finding:
    """The server's model with weight decay 0.01."""
    expected = ORACLES["fedavg"]["expected"]["round1_uniform_with_weight_decay_0.01"]
    return compare_server(algorithm, local_q(0.01), [expected])


def fedavg_clip(algorithm: Algorithm) -> Finding:
    """The models of the server and both clients with clip 1, then weight decay 0.01."""
    expected = ORACLES["fedavg"]["expected"]
    pairs = []
    for name, (state,) in run_bed_q(algorithm, local_q(0.01, clip=1.0)).items():
        target = expected["round1_uniform_clip1_then_weight_decay_0.01"]
        pairs.append(Pair(f"{name}, server", target, float(state.server.shared["w"])))
        for client, value in enumerate(expected["clients_clip1_then_wd"]):
            pairs.append(Pair(f"{name}, client {client}", value, float(state.models(client)["w"][-1])))
    return compare_numbers(pairs, TOLERANCE)
