"""Release: a fixed denominator, noise of the right size, added once, and nothing else of the clients."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kedge.algorithms import bottom_up, fedavg, fedbabu
from kedge.core.algorithm import with_schedule
from kedge.core.model import Model
from kedge.core.random import Purpose, normals
from kedge.core.server import Reply, Server, initial_server, server_update
from kedge.core.tree import Leaves, zeros
from kedge.nn.from_module import from_module
from kedge.privacy.clipping import with_clipping
from kedge.privacy.noise import BLOCK, Noise, keyed_noise, keyed_normals, system_noise
from kedge.privacy.release import opened_leaves, release
from kedge.privacy.settings import Privacy

PRIVACY = Privacy(2.0, 1.5)
EXPECTED = 8.0
Release = Callable[[Privacy, Server, Reply, float, frozenset[str], Noise], Reply]


def model() -> Model:
    return from_module(nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 20)))


def server(privacy: Privacy = PRIVACY) -> Server:
    params = {k: v.double() for k, v in model().init(0)[0].items()}
    return initial_server(
        with_clipping(fedavg("uniform"), privacy), model(), params, {"running": torch.ones(2)}
    )


def reply(size: int, value: float = 0.0, below: float | None = None) -> Reply:
    if not size:
        return Reply({}, 0, frozenset(), (), {})
    delta = {k: torch.full_like(v, value) for k, v in server().shared.items()}
    slot = {} if below is None else {"below": torch.tensor(below, dtype=torch.float64)}
    mean = {"delta": delta, "buffers": {"running": torch.zeros(2)}, "slots": {"privacy": slot}}
    return Reply(mean, size, frozenset(delta), (), {"train.loss": 3.0}, delta)


def noise_only(release: Release, size: int, round: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """All entries of the released delta of a round in which `size` clients uploaded zeros."""
    found = release(
        PRIVACY, server(), reply(size), EXPECTED, frozenset(server().shared), keyed_noise(3, round)
    )
    return np.concatenate([v.reshape(-1).numpy() for v in found.mean["delta"].values()])


def has_the_right_noise(release: Release) -> bool:
    """Whether the noise of rounds with few and many uploads has the standard deviation z·C / expected."""
    for size in (0, 2, 8, 30):
        drawn = np.concatenate([noise_only(release, size, round) for round in range(4)])
        ratio = drawn.std() / (PRIVACY.noise * PRIVACY.clip / EXPECTED)  # type: ignore[operator]  # both given
        if (
            abs(ratio - 1) > 5 / (2 * len(drawn)) ** 0.5
            or abs(drawn.mean() / drawn.std()) > 5 / len(drawn) ** 0.5
        ):
            return False
    return True


def test_the_noise_has_the_standard_deviation_of_the_mechanism() -> None:
    assert has_the_right_noise(release)


def test_noise_divided_by_the_actual_number_of_uploads_is_found() -> None:
    def actual_count(
        privacy: Privacy, server: Server, reply: Reply, expected: float, opened: frozenset[str], noise: Noise
    ) -> Reply:
        return release(privacy, server, reply, reply.size or expected, opened, noise)

    assert not has_the_right_noise(actual_count)


def test_noise_on_the_mean_that_is_not_divided_is_found() -> None:
    def undivided(
        privacy: Privacy, server: Server, reply: Reply, expected: float, opened: frozenset[str], noise: Noise
    ) -> Reply:
        loud = replace(privacy, noise=(privacy.noise or 0) * expected)
        return release(loud, server, reply, expected, opened, noise)

    assert not has_the_right_noise(undivided)


@pytest.mark.parametrize("size", [1, 5, 8, 12])
def test_the_denominator_is_fixed(size: int) -> None:
    """A client changes the released mean by its delta over the expected number, for any number of uploads."""
    quiet = replace(PRIVACY, noise=0.0)
    released = release(
        quiet, server(), reply(size, 0.5), EXPECTED, frozenset(server().shared), keyed_noise(0, 0)
    )
    for v in released.mean["delta"].values():
        torch.testing.assert_close(v, torch.full_like(v, 0.5 * size / EXPECTED))


def test_nothing_else_of_the_clients_is_released() -> None:
    start = server()
    for size in (0, 3, 9):
        found = release(PRIVACY, start, reply(size), EXPECTED, frozenset({"0.weight"}), keyed_noise(0, 0))
        assert (found.size, found.metrics, found.average) == (EXPECTED, {}, None)
        assert found.trained == {"0.weight"}
        assert found.mean["buffers"] is start.buffers
        assert found.mean["slots"] == {"privacy": {}}


def test_leaves_that_the_schedule_keeps_closed_get_no_noise() -> None:
    start, algorithm = server(), with_clipping(fedavg("uniform"), PRIVACY)
    opened = frozenset({"2.weight", "2.bias"})
    found = release(PRIVACY, start, reply(4, 0.5), EXPECTED, opened, keyed_noise(0, 0))
    after = server_update(algorithm, start, found, 10, 0)
    for models in (after.shared, after.average):
        changed = {k for k, v in models.items() if not torch.equal(v, start.shared[k])}
        assert changed == opened


@pytest.mark.thorough
def test_the_noised_count_is_a_share_of_the_expected_clients() -> None:
    adaptive = replace(PRIVACY, adaptive=True)
    start = server(adaptive)
    drawn = []
    for round in range(2000):
        noise = part_of_the_count(keyed_noise(5, round))
        found = release(adaptive, start, reply(6, 0.0, 0.25), EXPECTED, frozenset(), noise)
        drawn.append(float(found.mean["slots"]["privacy"]["below"]))
    deviation = adaptive.count_deviation(EXPECTED) / EXPECTED
    assert abs(np.mean(drawn) - 0.25 * 6 / EXPECTED) < 5 * deviation / 2000**0.5
    assert abs(np.std(drawn) / deviation - 1) < 5 / 4000**0.5
    empty = release(adaptive, start, reply(0), EXPECTED, frozenset(), keyed_noise(5, 0))
    assert empty.mean["slots"]["privacy"]["below"].shape == ()


def part_of_the_count(noise: Noise) -> Noise:
    """`noise` for the count, and zeros for the model: 3,000 numbers take longer to draw than one."""
    return lambda leaves, part: noise(leaves, part) if "below" in leaves else zeros(leaves)


def test_the_noise_of_a_leaf_is_that_of_its_key_in_every_dtype_and_order() -> None:
    shared: Leaves = {"b": torch.zeros(3, 2), "a": torch.zeros(5, dtype=torch.float64), "c": torch.zeros(())}
    drawn = keyed_noise(9, 4)(shared, 0)
    for number, name in enumerate("abc"):
        position = np.arange(shared[name].numel())
        expected = normals(9, Purpose.PRIVACY, round=4, client=number, step=0, position=position)
        assert drawn[name].dtype == shared[name].dtype
        torch.testing.assert_close(
            drawn[name].reshape(-1).double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-7
        )
    again = keyed_noise(9, 4)(dict(reversed(shared.items())), 0)
    assert all(torch.equal(v, again[k]) for k, v in drawn.items())


def test_rounds_parts_leaves_and_seeds_have_independent_noise() -> None:
    like = torch.zeros(20_000, dtype=torch.float64)
    streams = [
        keyed_normals(like, seed, round, leaf, part)
        for seed, round, leaf, part in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    ]
    correlation = np.corrcoef(torch.stack(streams).numpy())
    assert np.abs(correlation - np.eye(5)).max() < 5 / 20_000**0.5


def test_a_leaf_larger_than_a_block_has_no_repeated_noise() -> None:
    drawn = keyed_normals(torch.zeros(BLOCK + 5, dtype=torch.float64), 0, 0, 0, 0)
    assert torch.equal(drawn[:5], keyed_normals(torch.zeros(5, dtype=torch.float64), 0, 0, 0, 0))
    assert not torch.equal(drawn[BLOCK:], drawn[:5])


def test_noise_of_the_system_is_normal_and_never_repeated() -> None:
    like: Leaves = {"a": torch.zeros(300, 400, dtype=torch.float64), "b": torch.zeros(())}
    first, second = system_noise(like, 0), system_noise(like, 0)
    assert {k: (v.shape, v.dtype) for k, v in first.items()} == {
        k: (v.shape, v.dtype) for k, v in like.items()
    }
    count = 120_000
    for drawn in (first["a"].reshape(-1).numpy(), second["a"].reshape(-1).numpy()):
        assert abs(drawn.mean()) < 6 / count**0.5
        assert abs(drawn.var() - 1) < 6 * (2 / count) ** 0.5
        assert abs((drawn**4).mean() - 3) < 6 * (96 / count) ** 0.5
    correlation = np.corrcoef(first["a"].reshape(-1), second["a"].reshape(-1))[0, 1]
    assert abs(correlation) < 6 / count**0.5


def test_opened_leaves_follow_the_schedule_and_not_the_clients() -> None:
    network = model()
    everything = {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert opened_leaves(fedavg("uniform"), network, 0, 0) == everything
    bug = with_schedule(fedavg("uniform"), bottom_up(1.0), "fedbug")
    assert opened_leaves(bug, network, 0, 0) == everything
    assert opened_leaves(fedbabu(), network, 3, 3) == {"0.weight", "0.bias"}
