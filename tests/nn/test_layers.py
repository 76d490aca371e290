"""The replaced layers: batch norm that ignores padding, keyed dropout, stacked convolutions."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from kedge.core.errors import RequestError
from kedge.core.model import Batch, Model
from kedge.nn.from_module import from_module

NORMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(3), (3,)),
    "1d, sequences": (lambda: nn.BatchNorm1d(3), (3, 5)),
    "2d": (lambda: nn.BatchNorm2d(3, momentum=0.3, eps=1e-3), (3, 4, 2)),
    "3d": (lambda: nn.BatchNorm3d(3), (3, 2, 2, 2)),
    "no affine": (lambda: nn.BatchNorm2d(3, affine=False), (3, 2, 2)),
    "untracked": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (3, 2, 2)),
}
each_norm = pytest.mark.parametrize("name", NORMS)


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch(x: Tensor, weight: Tensor | None = None, key: tuple[int, int] = (1, 2)) -> Batch:
    ones = torch.ones(len(x), dtype=x.dtype)
    return Batch(
        x, torch.zeros(len(x), dtype=torch.int64), ones if weight is None else weight, torch.tensor(key)
    )


class Scaled(nn.Module):
    """A norm with a parameter before it, so that there is always something to train."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5))
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.factor * x)
        return y


def normed(name: str) -> tuple[nn.Module, Model, tuple[int, ...]]:
    build, shape = NORMS[name]
    module = Scaled(build()).double()
    for number, parameter in enumerate(module.parameters()):
        parameter.data += 0.1 * random_tensor(*parameter.shape, seed=number)
    return module, from_module(module), shape


@each_norm
def test_masked_batch_norm_is_torchs_in_training_and_evaluation(name: str) -> None:
    module, model, shape = normed(name)
    params, buffers = model.init(0)
    for step in range(3):
        x = random_tensor(6, *shape, seed=10 + step)
        out, buffers = model.apply(params, buffers, batch(x), True)
        torch.testing.assert_close(out.logits, module(x), rtol=1e-12, atol=1e-13)
    state = dict(module.named_buffers())
    for k, v in buffers.items():
        torch.testing.assert_close(v, state[k], rtol=1e-12, atol=1e-13)
    module.eval()
    x = random_tensor(4, *shape, seed=20)
    out, after = model.apply(params, buffers, batch(x), False)
    torch.testing.assert_close(out.logits, module(x), rtol=1e-12, atol=1e-13)
    assert all(torch.equal(after[k], buffers[k]) for k in buffers)


@each_norm
@pytest.mark.parametrize("junk", [0.0, 1e6])
def test_padding_changes_nothing(name: str, junk: float) -> None:
    """Rows of weight 0 affect neither the outputs of other rows nor the statistics."""
    _, model, shape = normed(name)
    params, buffers = model.init(0)
    x = random_tensor(4, *shape)
    padded = torch.cat([x, torch.full((3, *shape), junk, dtype=x.dtype)])
    weight = torch.tensor([1.0] * 4 + [0.0] * 3, dtype=x.dtype)
    plain, moved = model.apply(params, buffers, batch(x), True)
    out, after = model.apply(params, buffers, batch(padded, weight), True)
    torch.testing.assert_close(out.logits[:4], plain.logits, rtol=1e-12, atol=1e-12)
    for k in moved:
        torch.testing.assert_close(after[k], moved[k], rtol=1e-12, atol=1e-12)


@each_norm
def test_gradients_are_torchs(name: str) -> None:
    module, model, shape = normed(name)
    x, target = random_tensor(6, *shape), random_tensor(6, *shape, seed=1)
    ((module(x) - target) ** 2).sum().backward()
    params = {k: v.requires_grad_() for k, v in model.init(0)[0].items()}
    out, _ = model.apply(params, model.init(0)[1], batch(x), True)
    ((out.logits - target) ** 2).sum().backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    for k, v in module.named_parameters():
        torch.testing.assert_close(params[k].grad, v.grad, rtol=1e-10, atol=1e-11)


def test_a_batch_of_one_value_is_finite() -> None:
    """torch raises an error here, but a client with one sample must not end a run: its variance is 0."""
    model = from_module(Scaled(nn.BatchNorm1d(3)).double())
    params, buffers = model.init(0)
    out, moved = model.apply(params, buffers, batch(random_tensor(1, 3)), True)
    assert not out.logits.any()
    torch.testing.assert_close(moved["norm.running_var"], torch.full((3,), 0.9, dtype=torch.float64))


def test_frozen_statistics_are_used_and_never_moved() -> None:
    module = Scaled(nn.BatchNorm1d(3)).double()
    model = from_module(module, statistics="frozen")
    params, buffers = model.init(0)
    buffers = {"norm.running_mean": random_tensor(3), "norm.running_var": random_tensor(3, seed=1) ** 2 + 0.1}
    module.load_state_dict(buffers, strict=False)
    out, moved = model.apply(params, buffers, batch(random_tensor(5, 3)), True)
    assert all(moved[k] is v or torch.equal(moved[k], v) for k, v in buffers.items())
    torch.testing.assert_close(out.logits, module.eval()(random_tensor(5, 3)))


def test_what_is_not_supported_is_refused_by_name() -> None:
    for layer, message in (
        (nn.BatchNorm1d(3, momentum=None), "norm: BatchNorm with momentum=None"),
        (nn.SyncBatchNorm(3), "norm: SyncBatchNorm is not supported"),
        (nn.InstanceNorm1d(3, track_running_stats=True), "norm: InstanceNorm with track_running_stats"),
        (nn.AlphaDropout(0.5), "norm: AlphaDropout is not supported"),
    ):
        with pytest.raises(RequestError, match=message):
            from_module(Scaled(layer))


def dropped(layer: nn.Module, x: Tensor, key: tuple[int, int] = (1, 2), train: bool = True) -> Tensor:
    model = from_module(Scaled(layer).double())
    return model.apply({"factor": torch.ones((), dtype=x.dtype)}, {}, batch(x, key=key), train)[0].logits


def test_dropout_keeps_the_mean_and_drops_its_share() -> None:
    """A kept value is 1/(1−p), so the mean stays 1; the share dropped varies by √(p(1−p)/n) = 0.0023."""
    x = torch.ones(400, 100, dtype=torch.float64)
    out = dropped(nn.Dropout(0.3), x)
    share = float((out == 0).double().mean())
    assert abs(share - 0.3) < 5 * 0.0023
    assert set(out.flatten().tolist()) == {0.0, 1 / 0.7}
    assert abs(float(out.mean()) - 1) < 0.02
    assert 0.1 < float((out[0] == 0).double().mean()) < 0.5


def test_dropout_depends_on_the_key_alone() -> None:
    x = torch.ones(8, 50, dtype=torch.float64)
    first = dropped(nn.Dropout(0.5), x)
    assert torch.equal(first, dropped(nn.Dropout(0.5), x))
    assert not torch.equal(first, dropped(nn.Dropout(0.5), x, key=(1, 3)))
    assert not torch.equal(first, dropped(nn.Dropout(0.5), x, key=(2, 2)))
    assert torch.equal(first[:5], dropped(nn.Dropout(0.5), x[:5]))  # so padding does not matter


def test_two_dropouts_of_a_model_draw_differently() -> None:
    x = torch.ones(8, 50, dtype=torch.float64)
    both = dropped(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), x)
    assert 0.6 < float((both == 0).double().mean()) < 0.9  # 3/4, and 1/2 if they dropped the same


def test_dropout_rests_in_evaluation_and_at_rate_zero() -> None:
    x = random_tensor(8, 5)
    assert torch.equal(dropped(nn.Dropout(0.5), x, train=False), x)
    assert torch.equal(dropped(nn.Dropout(0.0), x), x)


def test_dropout2d_drops_whole_channels() -> None:
    out = dropped(nn.Dropout2d(0.5), torch.ones(20, 10, 3, 3, dtype=torch.float64))
    channels = out.flatten(2)
    assert bool((channels == channels[..., :1]).all())
    assert 0.35 < float((channels[..., 0] == 0).double().mean()) < 0.65


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, (1, 2)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_the_convolution_of_compiled_programs_is_torchs(
    stride: int, padding: int | tuple[int, int], dilation: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = nn.Conv2d(2, 3, (3, 2), stride, padding, dilation, bias=bias).double()
    model, x = from_module(nn.Sequential(module)), random_tensor(4, 2, 7, 6)
    params, _ = model.init(0)
    want = module(x)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    out = model.apply(params, {}, batch(x), True)[0].logits
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-13)
    stacked = vmap(lambda p: model.apply(p, {}, batch(x), True)[0].logits)(
        {k: torch.stack([v, 2 * v]) for k, v in params.items()}
    )
    torch.testing.assert_close(stacked[1], 2 * want, rtol=1e-12, atol=1e-13)
