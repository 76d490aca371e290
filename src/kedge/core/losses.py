"""Losses of a batch; every average over a batch is a `weighted_mean`, which leaves out padding."""

from torch import Tensor
from torch.nn import functional as F

from kedge.core.correction import Step
from kedge.core.model import Batch


def weighted_mean(values: Tensor, batch: Batch) -> Tensor:
    """The mean of `values`, one per sample, over the samples of weight 1."""
    return (values * batch.weight).sum() / batch.weight.sum()


def cross_entropy(step: Step) -> Tensor:
    """Softmax cross-entropy of the logits."""
    return weighted_mean(F.cross_entropy(step.out.logits, step.batch.y, reduction="none"), step.batch)
