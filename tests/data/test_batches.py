"""A round's plan: every sample once per epoch, one mask per row, weights of padding and inactive clients."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedge.algorithms.fedbug import BottomUp
from kedge.core.algorithm import LocalTraining
from kedge.core.schedules import Clock, Mask, Schedule, all_units
from kedge.data.alignment import align_steps, mask_runs
from kedge.data.batches import Plan, PlanSettings, RoundNumbers, plan, step_counts


def head_then_body(clock: Clock, units: int) -> Mask:
    """Train the last unit in the first half of the steps, the others in the second."""
    early = 2 * clock.step < clock.steps
    return tuple(early == (unit == units - 1) for unit in range(units))


def back_and_forth(clock: Clock, units: int) -> Mask:
    """Train the first unit in even steps, the others in odd steps."""
    return tuple((clock.step % 2 == 0) == (unit == 0) for unit in range(units))


SCHEDULES: list[Schedule] = [all_units, BottomUp(0.4), BottomUp(1.0), head_then_body, back_and_forth]
LOCALS = st.builds(LocalTraining, epochs=st.integers(1, 3), batch=st.integers(1, 7), drop_last=st.booleans())
SIZES = st.lists(st.integers(1, 17), min_size=1, max_size=5)
ROUND = st.integers(0, 50)


def members(sizes: Sequence[int]) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The samples of clients of these sizes, shuffled in the pool."""
    pool = np.random.default_rng(0).permutation(1000)
    ends = np.cumsum(sizes)
    return [pool[end - size : end].astype(np.int64) for size, end in zip(sizes, ends, strict=True)]


def planned(
    sizes: Sequence[int], local: LocalTraining, schedule: Schedule = all_units, round: int = 0
) -> Plan:
    return plan(
        members(sizes), range(len(sizes)), PlanSettings(local, schedule, 3), RoundNumbers(7, round, round)
    )


def batches(own: Plan, client: int) -> list[list[int]]:
    """The samples of a client's batches, without padding."""
    rows = np.flatnonzero(own.alive[:, client])
    return [own.index[row, client][own.weight[row, client] > 0].tolist() for row in rows]


@given(SIZES, LOCALS, st.sampled_from(SCHEDULES), ROUND)
def test_every_sample_comes_exactly_once_per_epoch(
    sizes: list[int], local: LocalTraining, schedule: Schedule, round: int
) -> None:
    """With drop_last a short last batch is dropped, unless it is the only one."""
    own = planned(sizes, local, schedule, round)
    for client, samples in enumerate(members(sizes)):
        size = min(local.batch, len(samples))
        per_epoch = len(samples) // size if local.drop_last else -(-len(samples) // size)
        drawn = batches(own, client)
        assert len(drawn) == own.steps[client] == local.epochs * per_epoch
        for epoch in range(local.epochs):
            parts = drawn[epoch * per_epoch : (epoch + 1) * per_epoch]
            seen = [sample for part in parts for sample in part]
            assert len(set(seen)) == len(seen)
            assert set(seen) <= set(samples.tolist())
            assert len(seen) == (size * per_epoch if local.drop_last else len(samples))
            assert all(len(part) == size for part in parts[:-1])


@given(SIZES, LOCALS, st.sampled_from(SCHEDULES), ROUND)
def test_a_client_draws_the_same_alone_and_in_company(
    sizes: list[int], local: LocalTraining, schedule: Schedule, round: int
) -> None:
    together = planned(sizes, local, schedule, round)
    for client, samples in enumerate(members(sizes)):
        alone = plan([samples], [client], PlanSettings(local, schedule, 3), RoundNumbers(7, round, round))
        assert batches(alone, 0) == batches(together, client)
        assert alone.alive.all()
        live = np.flatnonzero(together.alive[:, client])
        assert [together.masks[row] for row in live] == alone.masks
        assert (together.trained[client] == alone.trained[0]).all()


@given(SIZES, LOCALS, st.sampled_from(SCHEDULES))
def test_masks_are_the_schedules_and_counts_add_up(
    sizes: list[int], local: LocalTraining, schedule: Schedule
) -> None:
    own = planned(sizes, local, schedule)
    assert len(own.masks) == len(own.index) == len(own.alive)
    for client in range(len(sizes)):
        live = np.flatnonzero(own.alive[:, client])
        steps = int(own.steps[client])
        want = [schedule(Clock(0, 0, step, steps), 3) for step in range(steps)]
        assert [own.masks[row] for row in live] == want
        assert (own.trained[client] == np.sum(want, axis=0)).all()


@given(SIZES, LOCALS)
def test_padding_has_weight_zero_and_an_inactive_row_weights_of_one(
    sizes: list[int], local: LocalTraining
) -> None:
    """Inactive rows still compute: with all weights 0, every batch norm would have a variance of 0."""
    own = planned(sizes, local)
    assert set(np.unique(own.weight)) <= {0.0, 1.0}
    assert (own.weight[~own.alive] == 1).all()
    for client, samples in enumerate(members(sizes)):
        assert set(own.index[:, client].flatten().tolist()) <= set(samples.tolist())
        real = own.weight[own.alive[:, client], client].sum(axis=1)
        assert real.min() >= 1
        assert real.max() <= local.batch


@given(SIZES, LOCALS)
def test_a_width_pads_every_batch_to_it(sizes: list[int], local: LocalTraining) -> None:
    own = plan(members(sizes), range(len(sizes)), PlanSettings(local, all_units, 3), RoundNumbers(7), width=9)
    assert own.index.shape == own.weight.shape == (len(own.masks), len(sizes), 9)
    assert [batches(own, c) for c in range(len(sizes))] == [
        batches(planned(sizes, local), c) for c in range(len(sizes))
    ]


@pytest.mark.parametrize("ratio", [0.2, 0.5, 1.0])
@given(sizes=SIZES)
def test_phases_run_once_as_long_as_the_slowest_client_needs(ratio: float, sizes: list[int]) -> None:
    """FedBug on unequal clients: one run of rows per mask, in the order in which units open."""
    own = planned(sizes, LocalTraining(2, 2), BottomUp(ratio))
    phases = mask_runs(own.masks)
    opened = [sum(mask) for mask, _ in phases]
    assert opened == sorted(set(opened))
    for mask, rows in phases:
        needed = [
            sum(own.masks[row] == mask for row in np.flatnonzero(own.alive[:, c])) for c in range(len(sizes))
        ]
        assert rows == max(needed)


MASKS = st.sampled_from([(True, False), (False, True), (True, True)])


@given(st.lists(st.lists(MASKS, min_size=1, max_size=6), min_size=1, max_size=4))
def test_lockstep_gives_every_client_its_own_steps_in_order(sequences: list[list[Mask]]) -> None:
    masks, own = align_steps(sequences)
    for client, sequence in enumerate(sequences):
        live = [row for row in range(len(masks)) if own[row, client] >= 0]
        assert [own[row, client] for row in live] == list(range(len(sequence)))
        assert [masks[row] for row in live] == sequence
    assert all((own[row] >= 0).any() for row in range(len(masks)))


def test_batches_differ_by_round_epoch_client_and_seed() -> None:
    local, samples = LocalTraining(2, 20), np.arange(20)
    draws = [
        tuple(
            batches(
                plan([samples], [client], PlanSettings(local, all_units, 1), RoundNumbers(seed, round)), 0
            )[epoch]
        )
        for seed in (0, 1)
        for round in (0, 1)
        for client in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(draws)) == len(draws)


def test_batches_do_not_depend_on_the_stage() -> None:
    samples = [np.arange(20)]
    early, late = (
        plan(samples, [0], PlanSettings(LocalTraining(1, 5), all_units, 1), RoundNumbers(0, 9, stage))
        for stage in (0, 9)
    )
    assert (early.index == late.index).all()


def test_dropout_keys_differ_by_step_client_and_round_and_are_made_only_where_needed() -> None:
    sizes, local = [6, 6], LocalTraining(2, 2)
    quiet = planned(sizes, local)
    assert not quiet.key.any()
    keys = [
        tuple(key)
        for round in (0, 1)
        for rows in plan(
            members(sizes), [0, 1], PlanSettings(local, all_units, 3, random=True), RoundNumbers(7, round)
        ).key
        for key in rows
    ]
    assert len(set(keys)) == len(keys) == 2 * 2 * 6


@pytest.mark.parametrize(
    ("size", "batch", "drop_last", "steps"),
    [
        (10, 4, False, 3),
        (10, 4, True, 2),
        (3, 4, True, 1),
        (3, 4, False, 1),
        (4, 4, True, 1),
        (1, 1, True, 1),
    ],
)
def test_steps_per_epoch(size: int, batch: int, drop_last: bool, steps: int) -> None:
    used, counted = step_counts(np.array([size]), LocalTraining(1, batch, drop_last=drop_last))
    assert counted[0] == steps
    assert used[0] == min(size, batch)


def test_the_shuffle_is_fair() -> None:
    """Over many rounds every sample is first equally often, within five standard errors."""
    samples, rounds = np.arange(5), 2000
    first = [
        int(
            plan(
                [samples], [0], PlanSettings(LocalTraining(1, 1), all_units, 1), RoundNumbers(3, round)
            ).index[0, 0, 0]
        )
        for round in range(rounds)
    ]
    share = np.bincount(first, minlength=5) / rounds
    assert np.abs(share - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / rounds)
