"""Release: the server's part of a private run, between a round's reply and the server's update.

The engines return the mean of the admitted deltas. `release` turns it into their sum, divided by a fixed
denominator, the expected number of participants, and adds Gaussian noise once. Everything after it (server
rules, models, the history) is computed from this reply, and therefore has the same ε. The reply contains
nothing else that depends on the clients: no loss, no statistics of batch norm, no number of uploads.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from kedge.core.algorithm import Algorithm, model_for
from kedge.core.model import Model
from kedge.core.schedules import Clock
from kedge.core.server import Reply, Server
from kedge.core.tree import Leaves, axpy, scale, zeros
from kedge.privacy.clipping import Clipping
from kedge.privacy.noise import Noise
from kedge.privacy.settings import Privacy

STEPS = 1000  # of the clock that `opened_leaves` reads; a client's own number of steps is private
DELTA, COUNT = 0, 1  # parts of the noise of a round


def release(
    privacy: Privacy, server: Server, reply: Reply, expected: float, opened: frozenset[str], noise: Noise
) -> Reply:
    """The reply with the noised sum over a fixed denominator, `expected`, as the mean of all clients.

    A round without uploads releases noise alone. Leaves that are not in `opened` keep their values.
    """
    clip = server.slots[Clipping.name]["clip"]
    share = reply.size / expected
    delta: Leaves = scale(share, reply.mean["delta"]) if reply.size else zeros(server.shared)
    multiplier = privacy.sum_multiplier(expected)
    if multiplier:
        delta = axpy(multiplier / expected * clip, noise(delta, DELTA), delta)
    delta = {k: v if k in opened else torch.zeros_like(v) for k, v in delta.items()}
    slots: dict[str, Any] = {name: {} for name in server.slots}
    if privacy.adaptive:
        uploads = reply.mean["slots"][Clipping.name] if reply.size else {}
        deviation = privacy.count_deviation(expected) / expected
        slots[Clipping.name] = released_count(uploads, clip, share, deviation, noise)
    mean = {"delta": delta, "buffers": server.buffers, "slots": slots}
    return Reply(mean, expected, opened, reply.rejected, {})


def released_count(
    uploads: Mapping[str, Tensor], like: Tensor, share: float, deviation: float, noise: Noise
) -> Leaves:
    """The noised sum of the clients' b − 1/2 over the fixed denominator."""
    below = {"below": share * uploads["below"] if uploads else torch.zeros_like(like)}
    return axpy(deviation, noise(below, COUNT), below) if deviation else below


def opened_leaves(algorithm: Algorithm, model: Model, round: int, stage_round: int) -> frozenset[str]:
    """The leaves that the schedule opens in some step of a round, for a client of `STEPS` steps.

    The leaves that trained on the round's participants would depend on their numbers of samples.
    """
    units = len(model.units)
    clocks = (Clock(round, stage_round, step, STEPS) for step in range(STEPS))
    masks = {algorithm.schedule(clock, units) for clock in clocks}
    opened = {
        k for mask in masks for unit, trains in zip(model.units, mask, strict=True) if trains for k in unit
    }
    return frozenset(opened) | frozenset(model_for(algorithm, model).extra)
