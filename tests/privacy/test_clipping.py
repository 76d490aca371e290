"""Clipping: the sent delta equals plain torch's clip, and the adaptive clip converges to its quantile."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from kedge.algorithms import fedavg
from kedge.core.algorithm import Algorithm
from kedge.core.client import finish
from kedge.core.correction import Cohort
from kedge.core.tree import Leaves
from kedge.privacy.clipping import Clipping, clipped_delta, with_clipping
from kedge.privacy.settings import OFF, Privacy

SHAPES = {"weight": (7, 3), "bias": (7,), "scale": ()}


def leaves(seed: int, size: float = 1.0) -> Leaves:
    generator = torch.Generator().manual_seed(seed)
    return {
        k: size * torch.randn(shape, generator=generator, dtype=torch.float64) for k, shape in SHAPES.items()
    }


def norm(tree: Leaves) -> float:
    return float(torch.cat([v.reshape(-1) for v in tree.values()]).norm())


def upload(algorithm: Algorithm, anchor: Leaves, params: Leaves, clip: float) -> dict[str, object]:
    one = torch.ones((), dtype=torch.float64)
    carry = {"params": params, "buffers": {}, "state": {"privacy": {}}, "loss": one}
    fixed = {"anchor": anchor, "broadcast": {"privacy": {"clip": clip * one}}, "facts": {}, "lr": one}
    return finish(algorithm, carry, fixed, one, dict.fromkeys(anchor, one))[1]


@pytest.mark.parametrize("size", [0.01, 0.3, 1.0, 50.0])
def test_the_sent_delta_equals_the_clip_of_torch(size: float) -> None:
    anchor, delta = leaves(0), leaves(1, size)
    algorithm = with_clipping(fedavg("uniform"), Privacy(1.5, 1.0))
    sent = upload(algorithm, anchor, {k: v + delta[k] for k, v in anchor.items()}, 1.5)["delta"]
    whole = nn.Parameter(torch.cat([delta[k].reshape(-1) for k in SHAPES]))
    whole.grad = whole.detach().clone()
    nn.utils.clip_grad_norm_([whole], 1.5)
    assert isinstance(sent, dict)
    mine = torch.cat([sent[k].reshape(-1) for k in SHAPES])
    torch.testing.assert_close(mine, whole.grad, rtol=1e-5, atol=1e-12)  # torch adds 1e-6 to the norm
    assert float(mine.norm()) <= 1.5 * (1 + 1e-12)


def test_a_delta_below_the_clip_keeps_every_bit() -> None:
    delta = leaves(3, 0.1)
    same = clipped_delta(delta, torch.tensor(100.0, dtype=torch.float64))
    assert all(torch.equal(same[k], v) for k, v in delta.items())
    zero = {k: torch.zeros_like(v) for k, v in delta.items()}
    assert all(torch.equal(v, zero[k]) for k, v in clipped_delta(zero, torch.tensor(1.0)).items())


def test_rows_of_a_stack_are_clipped_one_by_one() -> None:
    rows = [leaves(n, 3.0**n) for n in range(4)]
    stacked = {k: torch.stack([r[k] for r in rows]) for k in SHAPES}
    clip = torch.tensor(2.0, dtype=torch.float64)
    mapped = vmap(lambda delta: clipped_delta(delta, clip))(stacked)
    for number, row in enumerate(rows):
        for k, v in clipped_delta(row, clip).items():
            torch.testing.assert_close(mapped[k][number], v)


@pytest.mark.parametrize(("size", "sign"), [(0.01, 0.5), (50.0, -0.5)])
def test_an_adaptive_client_also_sends_whether_its_norm_is_below_the_clip(size: float, sign: float) -> None:
    anchor, delta = leaves(0), leaves(1, size)
    algorithm = with_clipping(fedavg("uniform"), Privacy(1.0, 1.0, adaptive=True))
    sent = upload(algorithm, anchor, {k: v + delta[k] for k, v in anchor.items()}, 1.0)
    assert sent["slots"] == {"privacy": {"below": torch.tensor(sign, dtype=torch.float64)}}
    fixed = upload(with_clipping(fedavg("uniform"), Privacy(1.0, 1.0)), anchor, anchor, 1.0)
    assert fixed["slots"] == {"privacy": {}}


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.01, 100.0])
def test_the_adaptive_clip_converges_to_the_quantile_of_the_norms(quantile: float, start: float) -> None:
    norms = np.exp(np.random.default_rng(0).normal(1.0, 0.7, 400))
    clipping = Clipping(start, True, quantile, rate=0.2)
    state = clipping.init_server({"w": torch.zeros(3, dtype=torch.float64)})
    noise = np.random.default_rng(1).normal(0, 20 / 400, 400)
    late: list[float] = []
    for round in range(400):
        below = (norms <= float(state["clip"])).mean() - 0.5 + noise[round]
        mean: dict[str, Tensor] = {"below": torch.tensor(below)}
        _, state = clipping.server({}, mean, state, Cohort(round, 400, 400, {}))
        late.append(float(state["clip"]))
    share = np.mean([(norms <= clip).mean() for clip in late[200:]])
    assert abs(share - quantile) < 0.02


def test_without_privacy_the_algorithm_is_the_same() -> None:
    algorithm = fedavg("uniform")
    assert with_clipping(algorithm, OFF) is algorithm
