"""Flips and crops: exact pixels, draws on the host, movement on the device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.problem import SOME_CLIENTS, TOLERANCE, disagreement, federation, network
from torch.nn import functional as F

import kedge
from kedge.algorithms import fedavg, moon
from kedge.core.algorithm import LocalTraining
from kedge.core.errors import RequestError
from kedge.core.optimizers import SGD
from kedge.data.augment import PAD, Augment, augmented, draw_moves

IDS = np.array([3, 8])
STEPS = np.arange(400)[:, None] + np.zeros((1, 2), dtype=np.int64)


def by_hand(image: torch.Tensor, flip: int, down: int, right: int) -> torch.Tensor:
    """Flip, pad 4 zeros, crop at the offset."""
    turned = image.flip(-1) if flip else image
    padded = F.pad(turned, (PAD, PAD, PAD, PAD))
    return padded[..., down : down + image.shape[-2], right : right + image.shape[-1]]


def test_every_flip_and_offset_is_what_padding_and_cropping_by_hand_gives() -> None:
    image = torch.randn(3, 7, 9, dtype=torch.float64)
    for flip in (0, 1):
        for down in range(2 * PAD + 1):
            for right in range(2 * PAD + 1):
                got = augmented(image[None], torch.tensor([[flip, down, right]]))[0]
                assert torch.equal(got, by_hand(image, flip, down, right))


def test_images_of_several_batch_axes_move_each_by_its_own() -> None:
    images, moved = torch.randn(2, 5, 3, 6, 6), torch.randint(0, 9, (2, 5, 3)) % torch.tensor([2, 9, 9])
    got = augmented(images, moved)
    for row in range(2):
        for place in range(5):
            want = by_hand(images[row, place], *moved[row, place].tolist())
            assert torch.equal(got[row, place], want)


def test_half_are_flipped_and_half_are_cropped_uniformly_over_the_81_offsets() -> None:
    drawn = draw_moves("flip-crop", 0, 2, IDS, STEPS, 50, False).reshape(-1, 3)
    count = len(drawn)
    assert abs(drawn[:, 0].mean() - 0.5) < 4 * 0.5 / count**0.5
    offsets = drawn[:, 1] * 9 + drawn[:, 2]
    still = (offsets == 4 * 9 + 4).mean()
    assert abs(still - (0.5 + 0.5 / 81)) < 4 * 0.5 / count**0.5
    shares = np.bincount(offsets, minlength=81) / count
    others = np.delete(shares, 4 * 9 + 4)
    assert np.abs(others - 0.5 / 81).max() < 5 * (0.5 / 81 / count) ** 0.5
    flip_only = draw_moves("flip", 0, 2, IDS, STEPS, 50, False)
    assert (flip_only[..., 1:] == PAD).all()
    assert draw_moves("none", 0, 2, IDS, STEPS, 50, False).shape == (400, 2, 50, 0)


def test_a_draw_depends_on_client_round_step_and_place_and_on_nothing_else() -> None:
    whole = draw_moves("flip-crop", 0, 2, IDS, STEPS, 50, False)
    assert (draw_moves("flip-crop", 0, 2, IDS[1:], STEPS[:, 1:], 50, False) == whole[:, 1:]).all()
    assert (draw_moves("flip-crop", 0, 2, IDS, STEPS[7:9], 20, False) == whole[7:9, :, :20]).all()
    for other in ((1, 2, False), (0, 3, False), (0, 2, True)):
        assert (draw_moves("flip-crop", other[0], other[1], IDS, STEPS, 50, other[2]) != whole).any()


@pytest.mark.parametrize("augment", ["flip", "flip-crop"])
@pytest.mark.parametrize("method", [fedavg(), moon(projection=0)], ids=["fedavg", "moon"])
def test_engines_agree_on_augmented_images(augment: Augment, method: Any) -> None:
    data = replace(federation(), augment=augment)
    local = LocalTraining(2, 4, SGD(0.1, weight_decay=1e-2), clip=1.0)
    assert disagreement(method, local, network("batch"), data, SOME_CLIENTS, 2) < TOLERANCE


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.torch.jit:DeprecationWarning"
)  # torch.compile warns about torch's own code
def test_the_compiled_engine_agrees_on_augmented_images() -> None:
    data = replace(federation(), augment="flip-crop")
    assert (
        disagreement(fedavg(), LocalTraining(1, 4, SGD(0.1)), network("none"), data, compiled=True)
        < TOLERANCE
    )


def test_evaluation_sees_the_images_as_they_are() -> None:
    small: dict[str, Any] = {"rounds": 1, "training.epochs": 1, "optimizer.lr": 1e-12}
    plain, moved = (
        kedge.run("quickstart", **(small | {"training.augment": kind})).history[0]
        for kind in ("none", "flip-crop")
    )
    assert plain["distributed.global.loss"] == pytest.approx(moved["distributed.global.loss"], rel=1e-6)
    assert plain["train.loss"] != pytest.approx(moved["train.loss"], rel=1e-5)


def test_what_is_no_image_is_refused() -> None:
    settings: dict[str, Any] = {"data": "synthetic", "model": "mlp", "training.augment": "flip"}
    with pytest.raises(RequestError, match=r"training.augment = 'flip': need images .* shape \(16,\)"):
        kedge.run("quickstart", **settings)
