"""Every value of the clients that a private run would release without noise is refused, with a remedy."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

import kedge
from kedge.algorithms import METHOD_REGISTRY
from kedge.config.assemble import assemble
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.config.task import Task
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.correction import Correction, End
from kedge.core.errors import RequestError
from kedge.core.tree import Leaves, Tree
from kedge.privacy.clipping import Clipping

PRIVATE: dict[str, Any] = {
    "method": "fedavg(weights='uniform')",
    "training.on_divergence": "drop",
    "model.name": "mlp",
    "partition.clients": 6,
    "privacy.clip": 1.0,
    "privacy.noise": 1.0,
}
COVERED = {
    "fedavg", "fedprox", "feddyn", "feddyn-no-reg", "feddyn-no-h", "feddecorr", "fedntd", "moon", "fedavgm",
    "fedadam", "fedper", "lg-fedavg", "fedrep", "fedrod", "fedbabu",
}  # fmt: skip


def task(**settings: Any) -> Task:
    """The task of the quickstart, private; keys have __ for a dot."""
    own = {k.replace("__", "."): v for k, v in settings.items()}
    return assemble(resolve(override(read("quickstart"), PRIVATE | own)))


def test_clipping_is_the_last_correction_of_every_stage() -> None:
    private = task(method="feddyn -> fedavg(weights='uniform')@0.5")
    assert [c.name for c in private.stages[0].algorithm.corrections] == ["dynamic", "privacy"]
    assert all(isinstance(stage.algorithm.corrections[-1], Clipping) for stage in private.stages)


def test_a_run_without_the_table_has_no_clipping() -> None:
    plain = {k: v for k, v in PRIVATE.items() if not k.startswith("privacy")}
    stages = assemble(resolve(override(read("quickstart"), plain))).stages
    assert not any(isinstance(c, Clipping) for stage in stages for c in stage.algorithm.corrections)


@pytest.mark.parametrize("name", METHOD_REGISTRY)
def test_a_method_is_covered_exactly_if_its_clients_send_only_the_delta(name: str) -> None:
    has_weights = "weights" in inspect.signature(METHOD_REGISTRY[name].factory).parameters
    method = {"name": name, **({"weights": "uniform"} if has_weights else {})}
    if name in COVERED:
        assert task(method=method).privacy.active
        return
    with pytest.raises(RequestError, match="without clipping and noise"):
        task(method=method)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "fedavg"}, "different weights in the mean.*weights='uniform'"),
        ({"method": "feddyn(scaling='data')"}, "mean size of all clients.*scaling = 'uniform'"),
        ({"training__on_divergence": "stop"}, "training.on_divergence = 'drop'"),
        ({"privacy__delta": 0.2}, "need a number below 1/6"),
        ({"evaluation__all": True}, "evaluation.all = true"),
        ({"measure__drift": True}, "measure.drift = True"),
        ({"measure__features_every": 2}, "measure.features_every = 2"),
        ({"method": "feddyn", "measure__spread": True}, "measure.spread = True"),
        ({"privacy__adaptive": True, "privacy__count_noise": 0.1}, "too small for privacy.noise"),
        (
            {"method": "feddyn", "then": [{"method": {"name": "feddyn"}, "when": {"name": "plateau"}}]},
            "the rule reads metrics",
        ),
    ],
)
def test_a_value_without_noise_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        task(**settings)


@pytest.mark.parametrize("statistics", ["shared", "local", "frozen"])
def test_averaged_statistics_of_batch_norm_are_refused(statistics: Any) -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    clients = [kedge.Dataset(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(3)]
    settings: dict[str, Any] = {"on_divergence": "drop", "rounds": 2, "engine": "sequential"}
    settings |= {"statistics": statistics, "method": kedge.fedavg("uniform")}
    private = kedge.Privacy(clip=1.0, noise=1.0)
    if statistics == "shared":
        with pytest.raises(RequestError, match=r"training\.statistics = 'local' or 'frozen'"):
            kedge.train(module, clients, privacy=private, **settings)
        return
    result = kedge.train(module, clients, privacy=private, **settings)
    for name, value in module.state_dict().items():
        kept = "running" in name or "num_batches" in name
        assert torch.equal(result.model[name], value) == kept
    parameters = sum(p.numel() for p in module.parameters())
    assert result.history[0]["cost"]["bytes_up"] == 3 * 4 * parameters  # without the statistics


def test_an_adaptive_clip_refuses_a_method_that_changes_the_delta_afterwards() -> None:
    method = {"name": "fedtr", "strength_features": 0.0, "weights": "uniform"}
    assert task(method=method).privacy.active
    with pytest.raises(RequestError, match=r"privacy\.adaptive = false"):
        task(method=method, privacy__adaptive=True)


def test_a_rule_that_reads_only_the_server_s_state_is_allowed() -> None:
    rule = {"name": "proposition1", "estimate": "h"}
    later = [{"method": {"name": "fedavg", "weights": "uniform"}, "when": rule}]
    assert task(method="feddyn", then=later).privacy.active
    with pytest.raises(RequestError, match="rule that ends the stage of feddyn"):
        task(method="feddyn", then=[later[0] | {"when": rule | {"estimate": "clients"}}])


def test_a_run_without_noise_may_stop_at_a_divergence() -> None:
    assert task(training__on_divergence="stop", privacy__noise=0.0).privacy.active


class Census(Correction):
    """A user's correction that uploads a number of its own."""

    name = "census"

    def finish(self, end: End) -> tuple[Tree, Tree]:
        return end.state, {"examples": end.facts["examples"]}


class Halved(Correction):
    """A user's correction that changes the delta."""

    name = "halved"

    def send(self, delta: Leaves, end: End) -> Leaves:
        return {k: v / 2 for k, v in delta.items()}


@pytest.mark.parametrize(("correction", "covered"), [(Census(), False), (Halved(), True)])
def test_a_user_s_own_correction_is_checked_by_a_dry_run(correction: Correction, covered: bool) -> None:
    method = kedge.Algorithm("own", (correction,), weight=kedge.fedavg("uniform").weight)
    clients = [kedge.Dataset(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(3)]
    stage = Stage(method, 1, LocalTraining(1, 4))
    settings: dict[str, Any] = {"on_divergence": "drop", "engine": "sequential"}
    private = kedge.Privacy(clip=1.0, noise=1.0)
    if covered:
        result = kedge.train(nn.Linear(4, 3), clients, method=[stage], privacy=private, **settings)
        assert result.history[-1]["privacy.epsilon"] > 0
        return
    with pytest.raises(RequestError, match="besides the delta its clients send examples"):
        kedge.train(nn.Linear(4, 3), clients, method=[stage], privacy=private, **settings)
