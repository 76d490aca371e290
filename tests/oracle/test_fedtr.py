"""FedTR's drift of frozen units, and arguments that FedTR and FedPVR refuse."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from kedge.algorithms import fedpvr, fedtr
from kedge.algorithms.fedtr import ReleasedDrift
from kedge.core.correction import End
from kedge.core.errors import RequestError


def test_a_frozen_unit_neither_learns_nor_sends_drift() -> None:
    """A unit that is closed in all steps keeps its d_i, and its upload is 0."""
    drift = ReleasedDrift(1.0, "accumulate", 0.1)
    leaf = torch.ones(2)
    end = End(
        params={"a": leaf, "b": leaf}, anchor={"a": leaf, "b": leaf}, delta={"a": leaf, "b": leaf * 0},
        lr=leaf[0], steps=leaf[0], lr_time={"a": leaf[0], "b": leaf[0] * 0},
        state={"d": {"a": leaf, "b": leaf}}, broadcast={}, facts={},
    )  # fmt: skip
    kept, _ = drift.finish(end)
    sent_on = drift.send(end.delta, replace(end, state=kept))
    assert torch.equal(kept["d"]["b"], leaf)
    assert torch.equal(sent_on["b"], leaf * 0)
    assert torch.equal(sent_on["a"], 3 * leaf)


def test_bad_hyper_parameters_are_refused_with_a_reason() -> None:
    for make in (partial(fedtr, -1.0), partial(fedtr, 1.0, float("nan")), partial(fedtr, drift_rate=-0.1)):
        with pytest.raises(RequestError, match=r"need \w+ ≥ 0"):
            make()
    with pytest.raises(RequestError, match=r"fedpvr\(last=0\)"):
        fedpvr(0)
