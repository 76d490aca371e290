"""Oracles feddyn, feddyn_wo_reg, feddyn_wo_h, feddyn_clip_order and feddyn_to_fedavg of the specification.

kedge stores u_i = −g_i/α and u = −h/α. The comparison is of g_i and h.
"""

from dataclasses import replace
from typing import Any

import torch

from kedge.audit.bed import bed_q, local_q
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.recorded_run import RoundState, record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm, LocalTraining
from kedge.core.client import initial_carry, local_step
from kedge.core.correction import Step
from kedge.core.model import Batch
from kedge.core.optimizers import SGD


def feddyn(algorithm: Algorithm, case: str, form: str = "feddyn") -> Finding:
    """Client models, γ, h, every g_i and θ after each round of `case`. `form` names FedDyn or an ablation."""
    oracle = ORACLES[form]
    alpha, rounds = oracle.get("alpha_for_h_and_drift", oracle["alpha"]), oracle["expected"][case]
    cohorts = [expected["participants"] for expected in rounds]
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), [(algorithm, len(rounds))], local_q(), cohorts, engine)
        for number, (expected, state) in enumerate(zip(rounds, states, strict=True), 1):
            where = f"{name}, round {number}"
            pairs += model_pairs(where, expected, state)
            pairs.append(
                Pair(
                    f"{where}, h",
                    expected["h_server"],
                    -alpha * float(state.server.slots["dynamic"]["u"]["w"]),
                )
            )
            for client, value in enumerate(expected["client_drift_grad"]):
                memory = state.memories.get(str(client))
                u = float(memory["slots"]["dynamic"]["u"]["w"]) if memory else 0.0
                pairs.append(Pair(f"{where}, g_{client}", value, -alpha * u))
    return compare_numbers(pairs, TOLERANCE)


def model_pairs(where: str, expected: dict[str, Any], state: RoundState) -> list[Pair]:
    """Expected and actual models: the clients', their average γ and the distributed θ."""
    clients = [
        Pair(f"{where}, client {client}", value, float(state.models(int(client))["w"][-1]))
        for client, value in expected["client_models"].items()
    ]
    gamma = Pair(f"{where}, γ", expected["gamma_avg_model"], float(state.server.average["w"]))
    theta = Pair(f"{where}, θ", expected["theta_next"], float(state.server.shared["w"]))
    return [*clients, gamma, theta]


def to_fedavg(first: Algorithm, second: Algorithm) -> Finding:
    """Two stages: the second starts from θ, and its state does not contain h."""
    oracle = ORACLES["feddyn_to_fedavg"]
    rounds, before = oracle["expected"]["rounds"], oracle["pretraining_rounds"]
    stages = [(first, before), (second, len(rounds) - before)]
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), stages, local_q(), [row["participants"] for row in rounds], engine)
        for number, (expected, state) in enumerate(zip(rounds, states, strict=True), 1):
            pairs += model_pairs(f"{name}, round {number}", expected, state)
            kept = "dynamic" in state.server.slots
            pairs.append(Pair(f"{name}, round {number}, h is kept", float(number <= before), float(kept)))
    return compare_numbers(pairs, TOLERANCE)


def linear_loss(step: Step) -> torch.Tensor:
    """f(w) = 12 w."""
    gradient: float = ORACLES["feddyn_clip_order"]["inputs"]["grad_f"]
    return gradient * step.params["w"].sum()


def clip_order(algorithm: Algorithm) -> Finding:
    """One kernel step: α(u_i − θ) is clipped with the gradient; α·w and weight decay are added afterwards."""
    oracle = ORACLES["feddyn_clip_order"]
    given, expected = oracle["inputs"], oracle["expected"]

    def number(value: float) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor([value], dtype=torch.float64)}

    algorithm = replace(algorithm, loss=linear_loss)
    local = LocalTraining(
        optimizer=SGD(given["lr"], weight_decay=given["weight_decay"]), clip=given["max_norm"]
    )
    bed = bed_q()
    state = {"dynamic": {"u": number(given["u_i(=-g_i/alpha)"])}}
    carry = initial_carry(local, number(given["w"]), {}, state)
    fixed = {
        "anchor": number(given["theta_cloud"]),
        "broadcast": {"dynamic": {}},
        "facts": {k: v[0] for k, v in bed.federation.facts().items()},
        "lr": torch.tensor(given["lr"], dtype=torch.float64),
        "round": torch.tensor(0),
    }
    batch = Batch(
        bed.federation.pool.x[:1], bed.federation.pool.y[:1], torch.ones(1).double(), torch.zeros(2).long()
    )
    moved = float(local_step(algorithm, bed.model, local, ("w",), carry, batch, fixed)["params"]["w"])
    used = (given["w"] - moved) / given["lr"]
    return compare_numbers(
        [
            Pair("w after the step", expected["w_after_reference_code"], moved),
            Pair("gradient used", expected["gradient_used_by_reference_code"], used),
        ],
        TOLERANCE,
    )
