"""The batches of every client in a round: a pure function of (seed, round, client).

A plan aligns the steps of several clients (alignment.py): the stack takes one step after another, and a
client without a step of its own is not alive in a step of the stack. The sequential engine uses plans of one
client, so all engines draw the same batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kedge.core.algorithm import LocalTraining
from kedge.core.random import Purpose, bits, words
from kedge.core.schedules import Clock, Mask, Schedule
from kedge.data.alignment import align_steps
from kedge.data.augment import Augment, draw_moves
from kedge.data.batch_table import write_table

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Plan:
    """The batches, masks and random keys of several clients in all steps of a round."""

    masks: list[Mask]  # [steps]: the units that train
    index: Ints  # [steps, clients, batch]: indices into the pool
    weight: NDArray[np.float32]  # [steps, clients, batch]: 0 for padding; 1 if the client is not alive
    alive: NDArray[np.bool_]  # [steps, clients]: whether the client takes this step
    key: Ints  # [steps, clients, 2]: random key of dropout and other random layers
    moves: Ints  # [steps, clients, batch, 3]: flips and shifts; [..., 0] without augmentation
    steps: Ints  # [clients]: number of steps that the client takes
    trained: Ints  # [clients, units]: number of these steps in which a unit trains

    @cached_property
    def table(self) -> Ints:
        """The batches of all steps as one array, [steps, clients, columns] (batch_table.py)."""
        return write_table(self)


def step_counts(sizes: Ints, local: LocalTraining) -> tuple[Ints, Ints]:
    """Batch size and steps per epoch of clients with `sizes` samples; a batch has at most all samples."""
    batch = np.minimum(sizes, local.batch)
    return batch, sizes // batch if local.drop_last else -(-sizes // batch)


class PlanSettings(NamedTuple):
    """The settings of a plan that are the same in every round of a stage."""

    local: LocalTraining
    schedule: Schedule
    units: int
    random: bool = False  # whether the model draws random numbers, and needs keys
    tuning: bool = False  # whether to use the random streams of fine-tuning after a round
    augment: Augment = "none"


class RoundNumbers(NamedTuple):
    """The numbers that determine the random draws and the masks of a round."""

    seed: int = 0
    round: int = 0
    stage_round: int = 0


def plan(
    members: Sequence[Ints],
    clients: Sequence[int],
    settings: PlanSettings,
    numbers: RoundNumbers,
    width: int | None = None,
) -> Plan:
    """The plan of a round for `clients`; `members` are their samples, and batches are padded to `width`."""
    ids = np.asarray(clients, dtype=np.int64)
    sizes = np.array([len(samples) for samples in members], dtype=np.int64)
    batch, per_epoch = step_counts(sizes, settings.local)
    steps = settings.local.epochs * per_epoch
    sequences = mask_sequences(steps, settings, numbers)
    masks, own_step = align_steps([sequences[int(k)] for k in steps])
    alive, step = own_step >= 0, np.maximum(own_step, 0)  # [steps, clients]
    width = width or int(batch.max())
    first = (step % per_epoch)[..., None] * batch[:, None]
    place = np.arange(width)
    position = first + place  # [steps, clients, width]: positions in the epoch's shuffled order
    valid = (place < batch[:, None]) & (position < sizes[:, None])
    order = shuffled_orders(ids, sizes, settings, numbers)
    client, epoch = np.arange(len(ids))[:, None], step // per_epoch
    # Padding repeats the first sample of the batch. Batch normalization uses statistics of the real
    # samples: activations of another sample could grow from layer to layer and overflow, and 0 · inf is NaN.
    chosen = order[client, epoch[..., None], np.where(valid, position, first)]
    starts = np.cumsum(sizes) - sizes
    seed, round, _ = numbers
    trained = {k: np.sum(np.array(v, dtype=np.int64), axis=0) for k, v in sequences.items()}
    return Plan(
        masks=masks,
        index=np.concatenate(members)[starts[:, None] + chosen],
        weight=np.where(alive[..., None], valid, True).astype(np.float32),
        alive=alive,
        key=random_keys(ids, step, settings, numbers),
        moves=draw_moves(settings.augment, seed, round, ids, step, width, settings.tuning),
        steps=steps,
        trained=np.stack([trained[int(k)] for k in steps]),
    )


def mask_sequences(steps: Ints, settings: PlanSettings, numbers: RoundNumbers) -> dict[int, list[Mask]]:
    """The masks of all steps of a client, by its number of steps."""
    _, round, stage_round = numbers
    return {
        int(k): [
            settings.schedule(Clock(round, stage_round, step, int(k)), settings.units)
            for step in range(int(k))
        ]
        for k in np.unique(steps)
    }


def shuffled_orders(ids: Ints, sizes: Ints, settings: PlanSettings, numbers: RoundNumbers) -> Ints:
    """The shuffled samples of each client in each epoch, [clients, epochs, longest]; padding is last."""
    longest, epochs = int(sizes.max()), settings.local.epochs
    draws = bits(
        numbers.seed,
        Purpose.TUNE_SHUFFLE if settings.tuning else Purpose.SHUFFLE,
        round=numbers.round,
        client=ids[:, None, None],
        step=np.arange(epochs)[None, :, None],
        position=np.arange(longest),
    )
    draws = np.where(np.arange(longest) < sizes[:, None, None], draws, np.uint64(2**64 - 1))
    return np.argsort(draws, axis=-1, kind="stable")


def random_keys(ids: Ints, step: Ints, settings: PlanSettings, numbers: RoundNumbers) -> Ints:
    """The keys of the model's random numbers, [steps, clients, 2]; 0 if the model draws none."""
    if not settings.random:
        return np.zeros((*step.shape, 2), dtype=np.int64)
    purpose = Purpose.TUNE_DROPOUT if settings.tuning else Purpose.DROPOUT
    return words(numbers.seed, purpose, round=numbers.round, client=ids, step=step)[..., :2].astype(np.int64)


def survey(members: Sequence[Ints], width: int) -> tuple[Ints, NDArray[np.float32]]:
    """Batches that have every sample of the clients once, [batches, clients, width]: indices and weights.

    Padding has weight 0.
    """
    batches = -(-max(len(samples) for samples in members) // width)
    index = np.stack([np.resize(samples, batches * width) for samples in members])
    real = np.arange(batches * width) < np.array([len(samples) for samples in members])[:, None]
    shape = (len(members), batches, width)
    return (
        index.reshape(shape).transpose(1, 0, 2),
        real.astype(np.float32).reshape(shape).transpose(1, 0, 2),
    )
