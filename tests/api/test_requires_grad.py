"""kedge.train leaves parameters with requires_grad=False as they are: a plain PyTorch loop does the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kedge
from kedge.core.algorithm import Algorithm, Tune
from kedge.core.selections import body

SIZES = (9, 5, 12)


class Net(nn.Module):
    """A frozen layer and norm, a layer with a frozen bias, and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
            self.middle, self.last = nn.Linear(8, 5), nn.Linear(5, 3)
            nn.init.normal_(self.norm.weight)
        self.first.requires_grad_(False)
        self.norm.requires_grad_(False)
        self.middle.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(x)))
        logits: Tensor = self.last(torch.tanh(self.middle(hidden)))
        return logits


FROZEN = ("first.weight", "first.bias", "norm.weight", "norm.bias", "middle.bias")


def datasets() -> list[kedge.Dataset]:
    draw = torch.Generator().manual_seed(1)
    return [
        kedge.Dataset(
            torch.randn(n, 6, generator=draw, dtype=torch.float64),
            torch.randint(0, 3, (n,), generator=draw),
        )
        for n in SIZES
    ]


CLIENTS = datasets()


def headed(seed: int = 0) -> nn.Sequential:
    """A network in which only the last layer trains."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    net[0].requires_grad_(False)
    return net


def unchanged(module: nn.Module, model: dict[str, Tensor], names: tuple[str, ...]) -> bool:
    """Whether these have the module's values to the last bit, in its own precision."""
    before = module.state_dict()
    return all(model[k].dtype == before[k].dtype and torch.equal(model[k], before[k]) for k in names)


def plain_federation(
    module: nn.Module, rounds: int, epochs: int, clip: float | None, **sgd: Any
) -> nn.Module:
    """FedAvg by hand: torch.optim.SGD over what requires a gradient, full batches, averages by size."""
    server = copy.deepcopy(module).double()
    for _ in range(rounds):
        ends = []
        for data in CLIENTS:
            own = copy.deepcopy(server).train()
            active = [p for p in own.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(active, **sgd)
            for _ in range(epochs):
                optimizer.zero_grad()
                F.cross_entropy(own(data.x), data.y).backward()  # type: ignore[no-untyped-call]  # torch's
                norm = torch.cat([p.grad.flatten() for p in active if p.grad is not None]).norm()
                for p in active:
                    assert p.grad is not None
                    p.grad *= min(1.0, clip / float(norm)) if clip else 1.0
                optimizer.step()
            ends.append(own.state_dict())
        moved = {
            k: sum(n * end[k] for n, end in zip(SIZES, ends, strict=True)) / sum(SIZES)
            for k, v in server.state_dict().items()
            if v.is_floating_point() and k not in FROZEN
        }
        server.load_state_dict({**server.state_dict(), **moved})
    return server


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("sgd", "clip"),
    [({"lr": 0.3, "weight_decay": 0.05}, None), ({"lr": 0.3, "momentum": 0.8, "weight_decay": 0.05}, 0.4)],
    ids=["weight decay", "momentum and clipping"],
)
def test_fedavg_is_a_plain_loop_over_what_requires_a_gradient(
    engine: Any, sgd: dict[str, float], clip: float | None
) -> None:
    """Running statistics of the frozen norm move, as those of any unit that does not train."""
    module = Net()
    result = kedge.train(
        module, CLIENTS, rounds=3, epochs=4, batch=50, optimizer=kedge.SGD(**sgd), clip=clip, engine=engine,
        precision="fp64", compile="off",
    )  # fmt: skip
    want = plain_federation(module, 3, 4, clip, **sgd).state_dict()
    for k, v in result.model.items():
        if v.is_floating_point():
            assert float((v - want[k]).abs().max()) < 1e-12, k
    assert unchanged(module, result.model, FROZEN)
    assert not torch.equal(result.model["middle.weight"], module.middle.weight.double())
    assert not torch.equal(result.model["norm.running_mean"], module.norm.running_mean)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
def test_the_final_models_are_complete_and_load_into_the_module(precision: Any, tmp_path: Path) -> None:
    module = Net()
    result = kedge.train(
        module, CLIENTS, local_tests=CLIENTS, rounds=2, method="fedper", batch=4, precision=precision,
        engine="stacked", compile="off", out=tmp_path / "run", tune=Tune(1), optimizer=kedge.Adam(),
    )  # fmt: skip
    parameters = [k for k, _ in module.named_parameters()]
    from safetensors.torch import load_file

    files = [load_file(tmp_path / "run" / f"{name}.safetensors") for name in ("model", "average")]
    for state in (result.model, *result.personal.values(), *files):
        module.load_state_dict(state)
        assert unchanged(Net(), state, FROZEN)
    for state in (result.model, *result.personal.values()):
        assert list(state)[: len(parameters)] == parameters
    assert len(result.personal) == len(CLIENTS)


def call(module: nn.Module, out: Path, rounds: int, resume: bool = False) -> kedge.Result:
    return kedge.train(
        module, CLIENTS, test=CLIENTS[0], method="feddyn", rounds=rounds, batch=4, out=out, resume=resume,
        checkpoint_every=1, engine="stacked", compile="off",
    )  # fmt: skip


def test_a_resumed_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    call(Net(), tmp_path / "run", 2)
    longer, whole = call(Net(), tmp_path / "run", 4, resume=True), call(Net(), tmp_path / "whole", 4)
    assert all(torch.equal(v, whole.model[k]) for k, v in longer.model.items())
    written = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "whole")]
    assert written[0] == written[1]


def test_a_run_is_not_resumed_with_other_frozen_weights(tmp_path: Path) -> None:
    call(Net(), tmp_path / "run", 2)
    other = Net()
    with torch.no_grad():
        other.first.weight[0, 0] += 1
    with pytest.raises(kedge.CheckpointError, match="requires_grad=False have other values"):
        call(other, tmp_path / "run", 4, resume=True)


def test_a_run_that_trained_what_is_frozen_now_is_not_resumed(tmp_path: Path) -> None:
    call(Net().requires_grad_(True), tmp_path / "run", 2)
    with pytest.raises(
        kedge.RequestError, match=r'first\.bias was "8 float32", and is "8 float32, frozen" now'
    ):
        call(Net(), tmp_path / "run", 4, resume=True)
    (tmp_path / "run/kedge.json").unlink()  # as a run of version 0.1, which had none
    with pytest.raises(kedge.CheckpointError, match=r"first\.bias.* such parameters are not trained"):
        call(Net(), tmp_path / "run", 4, resume=True)


def test_listed_units_may_name_frozen_parameters() -> None:
    seen = set()

    def everything(clock: Any, units: int) -> tuple[bool, ...]:
        seen.add(units)
        return (True,) * units

    class Listed(Net):
        units = (("first", "norm"), ("middle",), ("last",))

    result = kedge.train(Listed(), CLIENTS, method=Algorithm("mine", schedule=everything), rounds=1)
    assert seen == {2}
    assert unchanged(Net(), result.model, FROZEN)


class Tied(nn.Module):
    """Two layers with one weight, frozen or not, and biases of their own."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight
        self.one.weight.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.tanh(self.two(torch.tanh(self.one(x)))))
        return logits


def test_a_tied_weight_trains_in_both_places_and_has_both_names() -> None:
    module = Tied(frozen=False)
    result = kedge.train(module, CLIENTS, rounds=2, method="fedper", local_tests=CLIENTS, batch=4)
    for state in (result.model, result.personal[1]):
        module.load_state_dict(state)
        assert torch.equal(state["one.weight"], state["two.weight"])
        assert not torch.equal(state["one.weight"], Tied(frozen=False).state_dict()["one.weight"])


def test_a_tied_frozen_weight_stays_in_both_places() -> None:
    module = Tied(frozen=True)
    result = kedge.train(module, CLIENTS, rounds=2, method="scaffold", batch=4)
    module.load_state_dict(result.model)
    assert unchanged(module, result.model, ("one.weight", "two.weight"))
    before = copy.deepcopy(module)
    again = kedge.train(module, CLIENTS, rounds=1, batch=4)
    assert unchanged(before, again.model, ("one.weight", "two.weight"))
    assert not torch.equal(again.model["two.bias"], before.two.bias)


def test_a_module_without_anything_to_train_is_refused() -> None:
    for method in ("fedavg", "moon", "fedrod"):
        with pytest.raises(kedge.RequestError, match="all 4 parameters have requires_grad=False"):
            kedge.train(headed().requires_grad_(False), CLIENTS, method=method)


@pytest.mark.parametrize(
    "method", ["fedper", "lg-fedavg", "fedrep", "fedbabu", "fedpvr", "fix-last+fedavg", "vanilla+fedavg"]
)
def test_methods_about_a_body_are_refused_where_only_the_head_trains(method: str) -> None:
    with pytest.raises(kedge.RequestError, match="2 of the module's 4 parameters have requires_grad=False"):
        kedge.train(headed(), CLIENTS, method=method, rounds=1)


def test_a_part_that_is_empty_is_refused() -> None:
    with pytest.raises(kedge.RequestError, match=r"mine shares no parameter.*requires_grad=False"):
        kedge.train(headed(), CLIENTS, method=Algorithm("mine", shared=body), rounds=1)
    with pytest.raises(kedge.RequestError, match=r"tune = 'body'.*requires_grad=False"):
        kedge.train(headed(), CLIENTS, local_tests=CLIENTS, tune=Tune(1, "body"), rounds=1)


def classifier_frozen() -> nn.Sequential:
    net = headed().requires_grad_(True)
    net[2].requires_grad_(False)
    return net


def test_fedrod_is_refused_where_its_generic_head_is_frozen() -> None:
    with pytest.raises(kedge.RequestError, match=r"fedrod trains the classifier.*2\.weight"):
        kedge.train(classifier_frozen(), CLIENTS, method="fedrod", rounds=1)


def test_fedrod_starts_from_a_classifier_that_is_frozen_in_part() -> None:
    module = headed()
    module[2].bias.requires_grad_(False)
    result = kedge.train(module, CLIENTS, local_tests=CLIENTS, method="fedrod", rounds=2, batch=4)
    assert unchanged(module, result.model, ("0.weight", "0.bias", "2.bias"))
    assert not torch.equal(result.personal[0]["personal.bias"], module.state_dict()["2.bias"])


@pytest.mark.parametrize("method", ["fedtr", "moon(projection=0)", "feddecorr", "fedntd"])
def test_methods_about_features_work_below_a_frozen_classifier(method: str) -> None:
    found = [
        kedge.train(
            classifier_frozen(), CLIENTS, method=method, rounds=3, batch=4, precision="fp64", engine=engine,
            compile="off",
        ).model
        for engine in ("sequential", "stacked")
    ]  # fmt: skip
    assert unchanged(classifier_frozen(), found[0], ("2.weight", "2.bias"))
    assert not torch.equal(found[0]["0.weight"].float(), classifier_frozen().state_dict()["0.weight"])
    assert all(torch.allclose(v, found[1][k], rtol=0, atol=1e-12) for k, v in found[0].items())


def test_moons_projection_trains_behind_a_frozen_backbone() -> None:
    module = headed()
    rebuilt = kedge.moon(projection=4).rebuild(module)
    result = kedge.train(module, CLIENTS, method="moon(projection=4)", rounds=2, batch=4)
    rebuilt.load_state_dict(result.model)
    assert unchanged(module, result.model, ("0.weight", "0.bias"))
    assert {k for k in result.model if k.startswith("2.")} == {
        f"2.{layer}.{kind}"
        for layer in ("projection.0", "projection.2", "classifier")
        for kind in ("weight", "bias")
    }
