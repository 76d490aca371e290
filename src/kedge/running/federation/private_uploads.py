"""Uploads of a private federation: the server clips them itself, and counts what it cannot use as zero."""

import torch

from kedge.config.task import Task
from kedge.core.algorithm import Stage
from kedge.engines.engine import Order
from kedge.engines.flower.messages import Content, MessageError
from kedge.engines.flower.private_rules import PrivateRules
from kedge.engines.flower.upload_check import Expected, checked_tree, totals_of
from kedge.engines.sums import Sums
from kedge.privacy.clipping import Clipping, clipped_delta
from kedge.privacy.release import opened_leaves


def private_rules(task: Task) -> PrivateRules | None:
    """The rules of a private task; None if the task is not private."""
    if not task.privacy.active:
        return None

    def opened(stage: Stage, order: Order) -> frozenset[str]:
        return opened_leaves(stage.algorithm, task.model, order.round, order.stage_round)

    return PrivateRules(opened, clipped_sums)


def clipped_sums(reply: Content, expected: Expected) -> Sums:
    """The sums of one client's upload, clipped again; raise MessageError if it has another form.

    A client that follows the rules has clipped its delta already, so that clipping again keeps it. All
    weights are 1.
    """
    tree = checked_tree(reply, expected)
    slot = tree["slots"][Clipping.name]
    if "below" in slot and abs(float(slot["below"])) != 0.5:
        raise MessageError(f"its bit for the adaptive clip is {float(slot['below'])}, not 0.5 or -0.5")
    clip = expected.order.broadcast[Clipping.name]["clip"]
    tree = {**tree, "delta": clipped_delta(tree["delta"], clip), "buffers": expected.order.buffers}
    weights = {name: torch.ones((), dtype=torch.float64) for name in ("", *tree["slots"])}
    return Sums(totals_of(tree, weights), 1, 0.0, expected.trained)
