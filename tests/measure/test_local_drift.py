"""Local drift from clients' memories, compared with the diversity of the vectors."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from kedge.algorithms import fedavg, feddc, feddyn, feddyn_no_reg, fedprox, fedtr, scaffold
from kedge.core.algorithm import Algorithm
from kedge.core.tree import Leaves
from kedge.measure.drift import gradient_diversity
from kedge.measure.last_models import LastModels
from kedge.measure.local_drift import drift_correction, local_drift

UNITS = (("unit0", ("a",)), ("unit1", ("b",)), ("unit2", ("personal",)))
FACTS = {"relative_size": torch.tensor([0.5, 1.0, 2.0, 1.0]).double()}


def vector(seed: int) -> Leaves:
    chance = torch.Generator().manual_seed(seed)
    return {k: torch.randn(4, generator=chance, dtype=torch.float64) for k in ("a", "b")}


def metrics(algorithm: Algorithm, memories: dict[str, Any]) -> dict[str, float | None]:
    """The metrics of local drift of a method's memories."""
    correction = drift_correction(algorithm)
    assert correction is not None
    return local_drift(correction, memories, FACTS, UNITS)


VECTORS = {0: vector(0), 2: vector(1), 3: vector(2)}  # client 1 never took part


@pytest.mark.parametrize(
    ("algorithm", "slot", "key"),
    [
        (feddyn(0.1), "dynamic", "u"),
        (feddyn_no_reg(), "dynamic", "u"),
        (scaffold(), "control", "c"),
        (feddc(0.1), "drift", "h"),
        (fedtr(), "released-drift", "d"),
    ],
)
def test_it_is_the_diversity_of_what_clients_remember(algorithm: Algorithm, slot: str, key: str) -> None:
    memories = {str(c): {"slots": {slot: {key: v}}, "local": {}} for c, v in VECTORS.items()}
    found = metrics(algorithm, memories)
    whole, first = [*VECTORS.values()], [{"a": v["a"]} for v in VECTORS.values()]
    assert found["drift.local.diversity"] == pytest.approx(gradient_diversity(whole), rel=1e-12)
    assert found["drift.local.diversity.unit0"] == pytest.approx(gradient_diversity(first), rel=1e-12)
    assert "drift.local.diversity.unit2" not in found


def test_feddyn_s_alpha_counts_where_it_is_a_client_s_own() -> None:
    """g_i = −α u_i / (n_i·m/Σn): larger for a small client."""
    memories = {str(c): {"slots": {"dynamic": {"u": v}}} for c, v in VECTORS.items()}
    g = [{k: -0.1 / float(FACTS["relative_size"][c]) * t for k, t in v.items()} for c, v in VECTORS.items()]
    lengths = [math.sqrt(sum(float((t**2).sum()) for t in v.values())) for v in g]
    found = metrics(feddyn(0.1, "data"), memories)
    assert found["drift.local.diversity"] == pytest.approx(gradient_diversity(g), rel=1e-12)
    assert found["drift.local.norm"] == pytest.approx(sum(lengths) / 3, rel=1e-12)


def test_methods_without_a_drift_and_memories_without_one_say_nothing() -> None:
    for algorithm in (fedavg(), fedprox(0.1), replace(fedavg(), corrections=(LastModels(),))):
        assert drift_correction(algorithm) is None
    assert metrics(feddyn(0.1), {"0": {"slots": {"all": {"e": vector(0)}}}}) == {}
    assert metrics(feddyn(0.1), {}) == {}


def test_drifts_that_cancel_or_are_zero_have_no_finite_value() -> None:
    one = vector(0)
    for memory, want in (({k: -v for k, v in one.items()}, math.inf), (None, None)):
        pair = [one, memory] if memory else [{k: 0 * v for k, v in one.items()}] * 2
        memories = {str(c): {"slots": {"control": {"c": v}}} for c, v in enumerate(pair)}
        assert metrics(scaffold(), memories)["drift.local.diversity"] == want
