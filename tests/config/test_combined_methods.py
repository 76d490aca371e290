"""Methods combined with &: the string, the tables of a config and the Python value are one method."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.api.test_assembly import call, check_same, configuration, history_of
from tests.cli.command import kedge as command

import kedge
from kedge.config.experiment import resolve
from kedge.config.method_string import as_text
from kedge.config.stages import stages_of
from kedge.core.algorithm import Algorithm
from kedge.running.execute import execute

SAME: dict[str, Algorithm] = {
    "fedtr & scaffold": kedge.fedtr() & kedge.scaffold(),
    "scaffold&fedprox(mu=0.1)": kedge.scaffold() & kedge.fedprox(0.1),
    "moon(projection=0) & fedprox(mu=0.1) & fedavgm": (
        kedge.moon(projection=0) & kedge.fedprox(0.1) & kedge.fedavgm()
    ),
    "fedbug(ratio=0.8) + feddyn(alpha=0.1) & feddecorr(beta=0.2)": kedge.fedbug(
        kedge.feddyn(0.1) & kedge.feddecorr(0.2), 0.8
    ),
    "fedper & scaffold": kedge.fedper() & kedge.scaffold(),
    "fedrod & fedadam(lr=0.3, tau=0.1)": kedge.fedrod() & kedge.fedadam(0.3, tau=0.1),
}


@pytest.mark.parametrize("text", SAME)
def test_the_string_and_the_python_value_are_the_same_method(text: str) -> None:
    stages = stages_of(resolve({"name": "x", "method": text}))
    assert stages[0].algorithm == SAME[text]


@pytest.mark.parametrize("text", SAME)
def test_the_string_and_the_python_value_give_the_same_bytes(text: str) -> None:
    check_same(call({"method": text}), call({"method": SAME[text]}))


def test_both_corrections_act() -> None:
    histories = [history_of(call({"method": text})) for text in ("feddyn & feddecorr", "feddyn", "feddecorr")]
    models = [[line["train.loss"] for line in history] for history in histories]
    assert models[0] != models[1] != models[2] != models[0]


def test_it_goes_wherever_a_method_goes(tmp_path: Path) -> None:
    """In stages, as tables, in the resolved config, which gives the same run again."""
    text = "feddyn & feddecorr -> fedbug+fedavg & fedexp@0.5"
    tables = {
        "method": {"name": "feddyn", "and": ["feddecorr"]},
        "then": [
            {"at": 0.5, "method": {"name": "fedavg", "and": [{"name": "fedexp"}]}, "schedule": "fedbug"}
        ],
    }
    first = execute(resolve(configuration({"method": text})), tmp_path / "run")
    assert resolve(configuration(tables)) == resolve(configuration({"method": text}))
    assert first.history[0]["method"] == "feddyn&feddecorr"
    assert first.method == "fedbug+fedavg&fedexp"
    again = resolve(tomllib.loads((tmp_path / "run/config.toml").read_text()))
    assert again.label == "feddyn&feddecorr->fedbug+fedavg&fedexp"
    check_same(first, execute(again))


def test_heads_are_added_once_to_stages_that_share_them() -> None:
    result = call({"method": "fedrod & feddecorr -> fedrod & fedprox@2 -> feddecorr & fedprox@4"})
    assert result.method == "feddecorr&fedprox"


def test_a_combined_method_is_written_as_a_user_writes_it() -> None:
    method = {"name": "fedtr", "drift_rate": 0.2, "and": [{"name": "scaffold"}]}
    assert as_text(method) == "fedtr(drift_rate=0.2) & scaffold"


@pytest.mark.slow
def test_methods_of_the_command_line_may_be_combined(tmp_path: Path) -> None:
    words = ("--set", "rounds=2", "--json")
    out = tmp_path / "runs"
    methods = "fedavg, fedtr & scaffold"
    told = command("run", "quickstart", *words, "--methods", methods, "--out", out).json()
    assert [row["method"] for row in told["runs"]] == ["fedavg", "fedtr&scaffold"]
    assert (out / "fedtr-scaffold/config.toml").is_file()
    answer = command("run", "--resume", out, "--json")
    assert answer.code == 0
    assert "fedtr-scaffold is finished already" in answer.err


def test_a_protocol_has_values_for_every_method_that_is_combined() -> None:
    table = {"name": "x", "protocol": "feddyn", "data": {"name": "cifar10"}}
    resolved = resolve({**table, "method": "fedprox & feddecorr"})
    assert resolved.method["weights"] == "uniform"
    assert resolved.method["and"][0]["beta"] == 0.01


REFUSED: dict[str, tuple[str, Callable[[], Algorithm]]] = {
    "fedtr & fedper": (
        "fedtr & fedper: fedper has no corrections that could be added to fedtr.",
        lambda: kedge.fedtr() & kedge.fedper(),
    ),
    "fedprox & fedavg": ("fedavg has no corrections that could be", lambda: kedge.fedprox() & kedge.fedavg()),
    "fedprox & moon": (
        "fedprox & moon: only the first method may decide more than corrections, and moon decides rebuild. "
        "Write it first: moon & fedprox.",
        lambda: kedge.fedprox() & kedge.moon(),
    ),
    "fedper & moon": (
        "moon decides rebuild. fedper does so, too (shared): use one of the two.",
        lambda: kedge.fedper() & kedge.moon(),
    ),
    "scaffold & fedpvr": (
        "scaffold&fedpvr: two corrections share a slot: ['control', 'control']. A slot has the state of one "
        "correction, so leave out one of the two.",
        lambda: kedge.scaffold() & kedge.fedpvr(),
    ),
    "feddyn & feddyn(alpha=0.1)": (
        "feddyn&feddyn: two corrections share a slot: ['dynamic', 'dynamic']",
        lambda: kedge.feddyn() & kedge.feddyn(0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_the_string_is_refused_as_the_python_value_is(text: str) -> None:
    reason, combine = REFUSED[text]
    with pytest.raises(kedge.RequestError) as by_value:
        combine()
    assert reason in str(by_value.value)
    with pytest.raises(kedge.RequestError) as by_text:
        stages_of(resolve({"name": "x", "method": text}))
    assert str(by_text.value) == str(by_value.value)


def test_a_combination_is_refused_if_one_of_its_parts_is() -> None:
    momentum = kedge.SGD(momentum=0.9)
    for method in ("fedprox & scaffold", kedge.fedprox() & kedge.scaffold()):
        with pytest.raises(kedge.RequestError, match=r"scaffold with momentum 0\.9"):
            call({"method": method, "optimizer": momentum})
    clients = [kedge.Dataset(torch.randn(4, 1, 6, 6), torch.arange(4) % 2)]
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    for method in ("fedprox & feddecorr", kedge.fedprox() & kedge.feddecorr()):
        with pytest.raises(kedge.RequestError, match=r"^feddecorr needs features: the model has no"):
            kedge.train(network, clients, method=method, progress=False)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("feddyn & fedbug+scaffold", "fedbug is a schedule, and & combines methods. Write it before"),
        ("feddyn & ", "cannot read it. Write name, name(key=value), schedule+name or name & name."),
        ("feddyn & scafold", "no method or schedule is called 'scafold'. Did you mean 'scaffold'?"),
        ("feddyn + scaffold", "it names two methods, feddyn and scaffold. Combine their corrections with &."),
        ("feddyn & feddecorr(gamma=1)", "unknown key method.gamma. Allowed for name = 'feddecorr': beta"),
        ({"name": "feddyn", "and": "feddecorr"}, "method.and = 'feddecorr': need a list of methods"),
        ({"name": "feddyn", "and": [3]}, "method = 3: need a table with a name"),
    ],
)  # fmt: skip
def test_wrong_combinations_say_why(method: Any, reason: str) -> None:
    with pytest.raises(kedge.RequestError) as raised:
        stages_of(resolve({"name": "x", "method": method}))
    assert reason in str(raised.value)
