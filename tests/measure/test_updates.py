"""The correction that measures updates, compared with numbers from the updates themselves."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch

from kedge.core.correction import Cohort, End
from kedge.core.tree import Leaves, stack, tree_map
from kedge.measure.drift import client_cosine, cosine, gradient_diversity
from kedge.measure.updates import Updates

UNITS = (("unit0", ("a.weight", "a.bias")), ("unit1", ("b.weight",)))
WATCH = Updates(UNITS)


def random_update(seed: int, factor: float = 1.0, dtype: torch.dtype = torch.float64) -> Leaves:
    chance = torch.Generator().manual_seed(seed)
    shapes = {"b.weight": (2, 3), "a.weight": (3, 2), "a.bias": (3,), "added": (2,)}
    return {k: factor * torch.randn(s, generator=chance, dtype=dtype) for k, s in shapes.items()}


def end_of_round(delta: Leaves, state: Any) -> End:
    one = torch.ones((), dtype=next(iter(delta.values())).dtype)
    return End(delta, {}, delta, one, one, {}, state, {}, {})


def metrics(*rounds: list[Leaves]) -> dict[str, float]:
    """The metrics after `rounds`, each with the updates of the same clients."""
    like = rounds[0][0]
    memories = [WATCH.init_client(like) for _ in rounds[0]]
    state = WATCH.init_server(like)
    for updates in rounds:
        done = [WATCH.finish(end_of_round(delta, own)) for delta, own in zip(updates, memories, strict=True)]
        memories = [memory for memory, _ in done]
        mean = tree_map(lambda v: v.mean(0), stack([upload for _, upload in done]))
        update = {"w": torch.zeros(1)}
        same, state = WATCH.server(update, mean, state, Cohort(0, len(updates), 9, like))
        assert same is update
    return {k: float(v) for k, v in WATCH.measures(state).items()}


def part(leaves: Leaves, name: str) -> Leaves:
    """The whole, or a unit's leaves."""
    return leaves if not name else {k: leaves[k] for k in dict(UNITS)[name[1:]]}


@pytest.mark.parametrize("name", ["", ".unit0", ".unit1"])
def test_every_number_is_that_of_the_updates(name: str) -> None:
    """Norms, diversity, the cosine of pairs, and the cosine of each update with the client's previous one."""
    before, now = (
        [random_update(s) for s in range(4)],
        [random_update(10 + s, factor=1 + s) for s in range(4)],
    )
    found = metrics(before, now)
    own, past = [part(v, name) for v in now], [part(v, name) for v in before]
    lengths = [math.sqrt(sum(float((t**2).sum()) for t in v.values())) for v in own]
    middle = {k: torch.stack([v[k] for v in own]).mean(0) for k in own[0]}
    pairs = [cosine(u, v) or 0.0 for u, v in combinations(own, 2)]
    rounds = [cosine(u, v) or 0.0 for u, v in zip(own, past, strict=True)]
    assert found[f"drift.norm{name}"] == pytest.approx(sum(lengths) / 4, rel=1e-12)
    moved = math.sqrt(sum(float((t**2).sum()) for t in middle.values()))
    assert found[f"drift.moved{name}"] == pytest.approx(moved, rel=1e-12)
    assert found[f"drift.diversity{name}"] == pytest.approx(gradient_diversity(own), rel=1e-12)
    assert found[f"drift.cosine.clients{name}"] == pytest.approx(sum(pairs) / 6, abs=1e-12)
    assert found[f"drift.cosine.clients{name}"] == pytest.approx(client_cosine(own), abs=1e-12)
    assert found[f"drift.cosine.rounds{name}"] == pytest.approx(sum(rounds) / 4, abs=1e-12)


def test_updates_that_are_zero_have_no_direction() -> None:
    """The update of client 1 is zero in the first round, of client 2 in the second; client 0 has both."""
    still = {k: torch.zeros_like(v) for k, v in random_update(0).items()}
    before, now = [random_update(1), still, random_update(2)], [random_update(3), random_update(4), still]
    found = metrics(before, now)
    assert found["drift.cosine.rounds"] == pytest.approx(cosine(now[0], before[0]), abs=1e-12)
    assert found["drift.cosine.clients"] == pytest.approx(cosine(now[0], now[1]), abs=1e-12)


def test_gaps_are_nan_here_and_norms_are_zero() -> None:
    """The history writes NaN as null."""
    like = random_update(0)
    still = {k: torch.zeros_like(v) for k, v in like.items()}
    nothing = metrics([still, still])
    assert nothing["drift.norm"] == nothing["drift.moved.unit0"] == 0
    assert all(math.isnan(v) for k, v in nothing.items() if "norm" not in k and "moved" not in k)
    alone = metrics([like])
    assert alone["drift.diversity"] == pytest.approx(1, abs=1e-12)
    assert math.isnan(alone["drift.cosine.clients"])
    assert math.isnan(alone["drift.cosine.rounds"])
    against = metrics([like, {k: -v for k, v in like.items()}])
    assert against["drift.diversity"] == math.inf
    assert against["drift.cosine.clients"] == pytest.approx(-1, abs=1e-12)
    frozen = {k: v if k == "b.weight" else torch.zeros_like(v) for k, v in like.items()}
    assert math.isnan(metrics([frozen, frozen])["drift.diversity.unit0"])
    assert metrics([frozen, frozen])["drift.diversity.unit1"] == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("factor", [1e25, 1e-30])
def test_no_finite_update_makes_an_upload_that_is_not(factor: float) -> None:
    """‖Δ‖² overflows in float32 if ‖Δ‖ > 1e19. The upload is finite and must be accepted."""
    huge = random_update(0, factor, torch.float32)
    memory, upload = WATCH.finish(end_of_round(huge, WATCH.init_client(huge)))
    memory, upload = WATCH.finish(end_of_round(huge, memory))
    whole = stack([{"memory": memory, "upload": upload}] * 3)
    assert all(v.isfinite().all() for v in flat(whole))
    _, state = WATCH.server({}, tree_map(lambda v: v.sum(0) / 3, whole["upload"]), {}, Cohort(0, 3, 3, huge))
    assert all(v.isfinite().all() for v in flat(state))


def flat(tree: Any) -> list[torch.Tensor]:
    return [v for v in tree.values() if isinstance(v, torch.Tensor)] + [
        t for v in tree.values() if not isinstance(v, torch.Tensor) for t in flat(v)
    ]
