"""from_module: any nn.Module as a pure model."""

import copy

import pytest
import torch
from torch import Tensor, nn

from kedge.core.errors import RequestError
from kedge.core.model import Batch, Output
from kedge.core.selections import body, everything, head
from kedge.nn.from_module import from_module, seeded


def batch(x: Tensor, weight: Tensor | None = None, key: tuple[int, int] = (1, 2)) -> Batch:
    ones = torch.ones(len(x), dtype=x.dtype)
    return Batch(
        x, torch.zeros(len(x), dtype=torch.int64), ones if weight is None else weight, torch.tensor(key)
    )


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small() -> nn.Sequential:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()

    module = seeded(build, 0)
    assert isinstance(module, nn.Sequential)
    return module


def test_output_is_the_modules_and_features_are_the_input_of_the_last_linear_layer() -> None:
    module, x = small(), random_tensor(5, 3)
    model = from_module(module)
    out, buffers = model.apply(*model.init(0), batch(x), True)
    torch.testing.assert_close(out.logits, module(x))
    torch.testing.assert_close(out.features, module[:2](x))
    assert buffers == {}


def test_features_are_flat_and_the_logits_where_there_is_no_linear_layer() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 4), nn.Flatten()).double()
    model, x = from_module(module), random_tensor(5, 1, 4, 4)
    out, _ = model.apply(*model.init(0), batch(x), True)
    torch.testing.assert_close(out.features, module(x))


def test_a_module_may_return_an_output_of_its_own() -> None:
    class ReturnsOutput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Output:
            return Output(x, self.layer(x), {"twice": 2 * x})

    model, x = from_module(ReturnsOutput()), random_tensor(5, 3).float()
    out, _ = model.apply(*model.init(0), batch(x), True)
    assert torch.equal(out.features, x)
    assert torch.equal(out.extra["twice"], 2 * x)


def test_the_module_is_not_touched() -> None:
    module = (
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).double().eval()
    )
    before = copy.deepcopy(module.state_dict())
    model = from_module(module)
    params, buffers = model.init(0)
    model.apply(params, buffers, batch(random_tensor(6, 3)), True)
    assert [type(layer) for layer in module] == [nn.Linear, nn.BatchNorm1d, nn.Dropout, nn.Linear]
    assert not module.training
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    params["0.weight"].zero_()
    assert torch.equal(module.state_dict()["0.weight"], before["0.weight"])


def test_apply_is_pure() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    model, x = from_module(module), random_tensor(6, 3)
    params, buffers = model.init(0)
    given = {k: v.clone() for k, v in {**params, **buffers}.items()}
    first, moved = model.apply(params, buffers, batch(x), True)
    second, again = model.apply(params, buffers, batch(x), True)
    assert torch.equal(first.logits, second.logits)
    assert all(torch.equal(moved[k], again[k]) for k in moved)
    assert all(torch.equal(v, given[k]) for k, v in {**params, **buffers}.items())
    assert not torch.equal(moved["1.running_mean"], buffers["1.running_mean"])


def test_a_build_gives_weights_by_seed_and_leaves_the_global_generator_alone() -> None:
    def build() -> nn.Module:
        return nn.Linear(3, 2)

    model = from_module(build(), build)
    state = torch.random.get_rng_state()
    first, again, other = (model.init(seed)[0]["weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_without_a_build_the_given_weights_are_kept() -> None:
    module = small()
    assert torch.equal(from_module(module).init(5)[0]["0.weight"], module.state_dict()["0.weight"])


def test_units_are_the_layers_with_parameters_and_a_norm_belongs_to_the_layer_before() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.GroupNorm(1, 2),
        nn.Flatten(), nn.Linear(2, 3),
    )  # fmt: skip
    model = from_module(module)
    assert model.units == (
        ("0.weight", "0.bias", "1.weight", "1.bias"),
        ("3.weight", "3.bias", "4.weight", "4.bias"),
        ("6.weight", "6.bias"),
    )
    assert head(model) == {"6.weight", "6.bias"}
    assert body(model) | head(model) == everything(model) == set(model.init(0)[0])


def test_a_norm_at_the_front_takes_the_layer_after_it_along() -> None:
    model = from_module(nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.Linear(4, 2)))
    assert model.units == (("0.weight", "0.bias", "1.weight", "1.bias"), ("2.weight", "2.bias"))


class Listed(nn.Module):
    """A module that lists its units."""

    def __init__(self, units: tuple[tuple[str, ...], ...]) -> None:
        super().__init__()
        self.stem, self.body, self.fc = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 2)
        self.units = units

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.body(self.stem(x)))
        return y


def test_listed_units_are_taken_as_they_are() -> None:
    model = from_module(Listed((("stem",), ("body", "fc"))))
    assert model.units == (
        ("stem.weight", "stem.bias"),
        ("body.0.weight", "body.0.bias", "fc.weight", "fc.bias"),
    )


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ((("stem",), ("fc",)), r"missing \['body.0.bias', 'body.0.weight'\]"),
        ((("stem",), ("body", "stem"), ("fc",)), r"twice \['stem.bias', 'stem.weight'\]"),
        ((("stem",), ("body",), ("fc",), ("pool",)), "no empty unit"),
    ],
)
def test_bad_lists_of_units_are_refused(units: tuple[tuple[str, ...], ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_module(Listed(units))


def test_a_module_without_parameters_is_refused() -> None:
    with pytest.raises(RequestError, match="no parameters"):
        from_module(nn.Sequential(nn.Flatten(), nn.ReLU()))


def test_integer_buffers_are_kept_apart_and_never_move() -> None:
    model = from_module(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    _, buffers = model.init(0)
    assert set(buffers) == {"1.running_mean", "1.running_var"}
    assert [name for name, _ in model.constants] == ["1.num_batches_tracked"]
    assert model.constants[0][1].dtype == torch.int64
