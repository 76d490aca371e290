"""Oracles feddecorr, fedntd and feddc of the specification: terms that clients add to their objective."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kedge.audit.bed import bed_q, local_q
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.oracles.averaging import TOLERANCE
from kedge.audit.recorded_run import record_rounds
from kedge.audit.specification import ORACLES
from kedge.audit.training import ENGINES
from kedge.core.algorithm import Algorithm
from kedge.core.correction import Step
from kedge.core.losses import cross_entropy
from kedge.core.model import Batch, Output


def step_with_outputs(local: Output, sent: Output, y: Sequence[int], real: int) -> Step:
    """A step in which the client's model has the output `local` and the server's model the output `sent`.

    Rows after the first `real` are padding.
    """
    weight = (torch.arange(len(y)) < real).double()
    batch = Batch(local.logits, torch.tensor(y), weight, torch.zeros(2, dtype=torch.int64))
    return Step({}, {}, batch, local, lambda leaves: sent, {}, {}, {}, torch.tensor(0))


def loss_term(algorithm: Algorithm, at: Step) -> Tensor:
    """The loss term of the method's first correction."""
    return torch.as_tensor(algorithm.corrections[0].loss(at))


def feddecorr(algorithm: Algorithm) -> Finding:
    """L_dec of the oracle's features for β = 1, with and without padding; 0 for a batch of one sample."""
    oracle = ORACLES["feddecorr"]
    rows = torch.tensor(oracle["inputs"]["features (batch 4 x 3)"], dtype=torch.float64)
    value = oracle["expected"]["loss_official_code mean_offdiag((Zs^T Zs)^2)/N"]
    padded = torch.cat([rows, 7 * rows[:2] - 3])
    pairs = []
    for name, features, real, expected in (
        ("four rows", rows, len(rows), value),
        ("four rows and padding", padded, len(rows), value),
        ("one row", rows[:1], 1, 0.0),
        ("one row and padding", padded, 1, 0.0),
    ):
        out = Output(features, features)
        pairs.append(
            Pair(
                name,
                expected,
                float(loss_term(algorithm, step_with_outputs(out, out, [0] * len(features), real))),
            )
        )
    return compare_numbers(pairs, TOLERANCE)


def fedntd(algorithm: Algorithm, case: str) -> Finding:
    """The term, with and without padding. For τ = 1 also its sum with cross-entropy, and its gradient."""
    given, expected = ORACLES["fedntd"]["inputs"], ORACLES["fedntd"]["expected"]
    pairs = []
    for padding in (0, 2):
        local = torch.tensor([given["local_logits"]] + [[9.0, -9.0, 9.0]] * padding, dtype=torch.float64)
        sent = torch.tensor([given["global_logits"]] + [[-9.0, 9.0, 5.0]] * padding, dtype=torch.float64)
        local.requires_grad_()
        step = step_with_outputs(
            Output(local, local), Output(sent, sent), [given["true_class"]] + [2] * padding, 1
        )
        value = loss_term(algorithm, step)
        total = cross_entropy(step) + value
        where = f"{padding} rows of padding"
        pairs.append(Pair(f"{where}, term", expected[case], float(value.detach())))
        if case == "ntd_tau1":
            pairs.append(Pair(f"{where}, sum", expected["total_tau1"], float(total.detach())))
            slopes = torch.autograd.grad(value, local)[0]
            pairs += [
                Pair(f"{where}, slope of logit {number}", target, float(actual))
                for number, (target, actual) in enumerate(
                    zip(expected["d_ntd/d_local_logits_tau1"], slopes[0], strict=True)
                )
            ]
    return compare_numbers(pairs, TOLERANCE)


def feddc(algorithm: Algorithm) -> Finding:
    """Client models, h_i, g_i, g, the average and w after each of two rounds."""
    rounds = ORACLES["feddc"]["expected"]
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), [(algorithm, len(rounds))], local_q(), [[0, 1]] * len(rounds), engine)
        for number, (expected, state) in enumerate(zip(rounds, states, strict=True), 1):
            where, server = f"{name}, round {number}", state.server
            for client, memory in state.memories.items():
                drift = memory["slots"]["drift"]
                for key, actual in (
                    ("client_models", state.models(int(client))["w"][-1]),
                    ("h_i", drift["h"]["w"]),
                    ("g_i", drift["g"]["w"]),
                ):
                    pairs.append(Pair(f"{where}, {key} {client}", expected[key][int(client)], float(actual)))
            pairs += [
                Pair(f"{where}, g", expected["g_server"], float(server.slots["drift"]["g"]["w"])),
                Pair(f"{where}, average", expected["avg_model"], float(server.average["w"])),
                Pair(f"{where}, w", expected["w_next"], float(server.shared["w"])),
            ]
    return compare_numbers(pairs, TOLERANCE)


def feddc_means(algorithm: Algorithm) -> Finding:
    """If only some clients take part, the server uses the means of g_i and h_i over all m clients.

    Clients that never took part have h_i = g_i = 0.
    """
    cohorts = [[0], [1], [1], [0, 1]]
    pairs = []
    for name, engine in ENGINES.items():
        states = record_rounds(bed_q(), [(algorithm, 4)], local_q(), cohorts, engine)
        for number, state in enumerate(states, 1):
            drifts = [memory["slots"]["drift"] for memory in state.memories.values()]
            h, g = (sum(float(drift[part]["w"]) for drift in drifts) / 2 for part in ("h", "g"))
            server, where = state.server, f"{name}, round {number}"
            added = float(server.shared["w"] - server.average["w"])
            pairs.append(Pair(f"{where}, mean of h_i", h, added))
            pairs.append(Pair(f"{where}, mean of g_i", g, float(server.slots["drift"]["g"]["w"])))
    return compare_numbers(pairs, TOLERANCE)
