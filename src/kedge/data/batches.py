"""The batches of every client in a round: a pure function of (seed, round, client).

A plan aligns the steps of several clients in rows; one row is one step of the stack. In a row all clients
train the same units, so clients with different step counts are aligned by phase of the schedule (consecutive
steps with the same mask). A client without a step in a row is inactive there (`alive` is false). The
sequential engine uses plans of one client, so all engines draw the same batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kedge.core.algorithm import LocalTraining
from kedge.core.random import Purpose, bits, words
from kedge.core.schedules import Clock, Mask, Schedule
from kedge.data.augment import Augment, moves
from kedge.data.batch_table import write_table

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """Batches, masks and random keys of some clients, in rows of one step each."""

    masks: list[Mask]  # [rows]: the units that train
    index: Ints  # [rows, clients, batch]: indices into the pool
    weight: NDArray[np.float32]  # [rows, clients, batch]: 0 for padding; 1 where a client is inactive
    alive: NDArray[np.bool_]  # [rows, clients]
    key: Ints  # [rows, clients, 2]: random key of dropout and other random layers
    moves: Ints  # [rows, clients, batch, 3]: flips and shifts; [..., 0] without augmentation
    steps: Ints  # [clients]: local steps of each client
    trained: Ints  # [clients, units]: number of local steps in which a unit trains

    @cached_property
    def table(self) -> Ints:
        """The batches of all steps as one array, [rows, clients, columns] (batch_table.py)."""
        return write_table(self)


def step_counts(sizes: Ints, local: LocalTraining) -> tuple[Ints, Ints]:
    """Batch size and steps per epoch of each client; a batch larger than the data becomes a full batch."""
    batch = np.minimum(sizes, local.batch)
    return batch, sizes // batch if local.drop_last else -(-sizes // batch)


def plan(
    members: Sequence[Ints],
    clients: Sequence[int],
    local: LocalTraining,
    schedule: Schedule,
    units: int,
    seed: int,
    round: int,
    stage_round: int,
    width: int | None = None,
    random: bool = False,
    tuning: bool = False,
    augment: Augment = "none",
) -> Plan:
    """The plan of a round for `clients`, whose samples are `members`; batches are padded to `width`.

    `random` adds random keys for the model. `tuning` uses the random streams of fine-tuning after a round.
    """
    ids = np.asarray(clients, dtype=np.int64)
    sizes = np.array([len(own) for own in members], dtype=np.int64)
    batch, per_epoch = step_counts(sizes, local)
    steps = local.epochs * per_epoch
    longest = int(sizes.max())
    shuffle = bits(
        seed,
        Purpose.TUNE_SHUFFLE if tuning else Purpose.SHUFFLE,
        round=round,
        client=ids[:, None, None],
        step=np.arange(local.epochs)[None, :, None],
        position=np.arange(longest),
    )
    shuffle = np.where(np.arange(longest) < sizes[:, None, None], shuffle, np.uint64(2**64 - 1))
    order = np.argsort(shuffle, axis=-1, kind="stable")  # [clients, epochs, longest]; padding is last

    sequences = {
        int(k): [schedule(Clock(round, stage_round, step, int(k)), units) for step in range(int(k))]
        for k in np.unique(steps)
    }
    masks, own_step = lockstep([sequences[int(k)] for k in steps])
    alive = own_step >= 0

    width = width or int(batch.max())
    place = np.arange(width)
    step = np.maximum(own_step, 0)
    epoch, number = step // per_epoch, step % per_epoch
    first = number[..., None] * batch[:, None]
    position = first + place  # [rows, clients, width]
    valid = (place < batch[:, None]) & (position < sizes[:, None])
    row = np.arange(len(ids))[:, None]
    # Padding repeats the first sample of the batch. Batch normalization uses statistics of the real
    # samples: activations of another sample could grow from layer to layer and overflow, and 0 · inf is NaN.
    chosen = order[row, epoch[..., None], np.where(valid, position, first)]
    pool = np.concatenate(members)
    starts = np.cumsum(sizes) - sizes
    index = pool[starts[:, None] + chosen]

    key = np.zeros((*own_step.shape, 2), dtype=np.int64)
    if random:
        dropout = Purpose.TUNE_DROPOUT if tuning else Purpose.DROPOUT
        key = words(seed, dropout, round=round, client=ids, step=step)[..., :2].astype(np.int64)
    trained = {k: np.sum(np.array(v, dtype=np.int64), axis=0) for k, v in sequences.items()}
    return Plan(
        masks=masks,
        index=index,
        weight=np.where(alive[..., None], valid, True).astype(np.float32),
        alive=alive,
        key=key,
        moves=moves(augment, seed, round, ids, step, width, tuning),
        steps=steps,
        trained=np.stack([trained[int(k)] for k in steps]),
    )


def survey(members: Sequence[Ints], width: int) -> tuple[Ints, NDArray[np.float32]]:
    """Every sample of the clients once, in order: indices and weights (0: padding) [rows, clients, width]."""
    rows = -(-max(len(own) for own in members) // width)
    index = np.stack([np.resize(own, rows * width) for own in members])
    real = np.arange(rows * width) < np.array([len(own) for own in members])[:, None]
    shape = (len(members), rows, width)
    return (
        index.reshape(shape).transpose(1, 0, 2),
        real.astype(np.float32).reshape(shape).transpose(1, 0, 2),
    )


def lockstep(sequences: Sequence[Sequence[Mask]]) -> tuple[list[Mask], Ints]:
    """Align mask sequences: the mask of every row, and each client's step in every row (−1: none).

    A row takes the mask that the fewest clients need again later. If a schedule only opens, or only closes,
    units, each phase occurs once and lasts as long as its longest client.
    """
    if len({tuple(sequence) for sequence in sequences}) == 1:
        own = np.arange(len(sequences[0]), dtype=np.int64)
        return list(sequences[0]), np.repeat(own[:, None], len(sequences), axis=1)
    if len({mask for sequence in sequences for mask in sequence}) == 1:
        lengths = np.array([len(sequence) for sequence in sequences])
        own = np.arange(lengths.max(), dtype=np.int64)[:, None]
        return [sequences[0][0]] * len(own), np.where(own < lengths, own, -1)

    phases = [mask_runs(sequence) for sequence in sequences]
    at = [0] * len(sequences)  # current phase of each client
    done = [0] * len(sequences)  # steps done by each client
    masks: list[Mask] = []
    rows: list[list[int]] = []
    while any(at[c] < len(phases[c]) for c in range(len(sequences))):
        waiting = [c for c in range(len(sequences)) if at[c] < len(phases[c])]
        now = {c: phases[c][at[c]][0] for c in waiting}

        def returns(mask: Mask, waiting: list[int] = waiting, now: dict[int, Mask] = now) -> tuple[int, int]:
            later = sum(now[c] != mask and mask in {m for m, _ in phases[c][at[c] :]} for c in waiting)
            return later, -sum(now[c] == mask for c in waiting)

        mask = min(dict.fromkeys(now.values()), key=returns)
        members = [c for c in waiting if now[c] == mask]
        for k in range(max(phases[c][at[c]][1] for c in members)):
            masks.append(mask)
            rows.append(
                [
                    done[c] + k if c in members and k < phases[c][at[c]][1] else -1
                    for c in range(len(sequences))
                ]
            )
        for c in members:
            done[c] += phases[c][at[c]][1]
            at[c] += 1
    return masks, np.array(rows, dtype=np.int64)


def mask_runs(sequence: Sequence[Mask]) -> list[tuple[Mask, int]]:
    """Runs of equal masks with their lengths."""
    runs: list[tuple[Mask, int]] = []
    for mask in sequence:
        if runs and runs[-1][0] == mask:
            runs[-1] = (mask, runs[-1][1] + 1)
        else:
            runs.append((mask, 1))
    return runs
