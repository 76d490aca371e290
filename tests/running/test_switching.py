"""Switching by rule in a run: the end of the stage, the state after it, refused settings."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from tests.contract.resuming import assert_resume_is_exact, stop_after
from tests.running.plain_torch import ENGINES, Kind, task_of

import kedge
from kedge.algorithms import fedavg, feddyn, feddyn_no_reg, scaffold
from kedge.config.assemble import assemble
from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.config.task import Task
from kedge.core.algorithm import Algorithm
from kedge.core.errors import RequestError
from kedge.rules import RULES
from kedge.rules.proposition1 import Proposition1
from kedge.running.execute import execute, resume
from kedge.running.progress import Interrupted

each_engine = pytest.mark.parametrize("kind", ENGINES)


SMALL: dict[str, Any] = {
    "rounds": 8, "model.name": "mlp", "training.epochs": 1, "engine.name": "sequential",
    "partition.clients": 6, "participation.per_round": 3,
}  # fmt: skip


def methods_of(history: list[dict[str, Any]]) -> list[str]:
    return [line["method"] for line in history]


def small(**settings: Any) -> list[dict[str, Any]]:
    return kedge.run("quickstart", progress=False, **{**SMALL, **settings}).history


RULE = "proposition1(smooth=2, threshold={})"


def a_threshold() -> tuple[float, int]:
    """A threshold that ends FedDyn inside the run, and the round after which it does."""
    reached = Proposition1(smooth=2).criterion(small(method="feddyn(alpha=0.1)"))
    top = max(range(len(reached)), key=lambda t: reached[t])
    return reached[top], top + 3


@pytest.mark.slow
def test_one_line_and_a_config_file_switch_where_the_rule_says(tmp_path: Path) -> None:
    threshold, last = a_threshold()
    assert 3 <= last < 8
    line = f"feddyn(alpha=0.1) -> fedavg@{RULE.format(threshold)}"
    written = small(method=line)
    assert methods_of(written) == ["feddyn"] * last + ["fedavg"] * (8 - last)
    then = {"when": RULE.format(threshold), "method": "fedavg"}
    table = {**read("quickstart"), "method": "feddyn(alpha=0.1)", "then": [then]}
    path = tmp_path / "switch.toml"
    path.write_text(tomli_w.dumps(table))
    asked = kedge.run(path, progress=False, **SMALL).history
    assert [without_time(line) for line in asked] == [without_time(line) for line in written]
    assert [line["stage"] for line in written] == [0] * last + [1] * (8 - last)


def without_time(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k != "time"}


@pytest.mark.slow
@pytest.mark.parametrize(("at", "rounds"), [(2, 2), (0.25, 2), (7, None)])
def test_at_beside_when_is_the_latest_round(at: float, rounds: int | None, tmp_path: Path) -> None:
    threshold, last = a_threshold()
    then = {"at": at, "when": RULE.format(threshold), "method": "fedavg"}
    path = tmp_path / "switch.toml"
    path.write_text(tomli_w.dumps({**read("quickstart"), "method": "feddyn(alpha=0.1)", "then": [then]}))
    history = kedge.run(path, progress=False, **SMALL).history
    assert methods_of(history).count("feddyn") == (rounds or last)
    assert len(history) == 8


def test_a_plateau_ends_a_stage_of_a_run() -> None:
    """With patience 1 and a gain that no round reaches, the stage ends after the second evaluation."""
    history = small(method="feddyn -> fedavg@plateau(patience=1, by=1.0)", **{"evaluation.every": 2})
    assert methods_of(history) == ["feddyn"] * 4 + ["fedavg"] * 4


@pytest.mark.slow
def test_where_a_rule_is_never_met_the_first_method_has_all_rounds_and_its_models(tmp_path: Path) -> None:
    """The rest of the run is FedDyn's: its average is not its distributed model."""
    settings = {**SMALL, "method": "feddyn(alpha=0.1) -> fedavg@proposition1(threshold=1e9)"}
    never = kedge.run("quickstart", out=tmp_path / "never", progress=False, **settings)
    alone = kedge.run(
        "quickstart", out=tmp_path / "alone", progress=False, **{**settings, "method": "feddyn(alpha=0.1)"}
    )
    assert never.method == alone.method == "feddyn"
    assert [without_time(line) for line in never.history] == [without_time(line) for line in alone.history]
    for name in ("model.safetensors", "average.safetensors"):
        assert (tmp_path / "never" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    again = resume(tmp_path / "never")
    assert again.method == "feddyn"


def third(history: Any) -> bool:
    return len(history) == 3


def two_stages(*methods: Algorithm) -> Task:
    task = task_of(*((method, rounds) for method, rounds in zip(methods, (4, 0), strict=True)))
    return replace(task, stages=(replace(task.stages[0], until=third), task.stages[1]))


@pytest.mark.parametrize("after", [2, 3])
@each_engine
def test_a_run_resumes_exactly_before_and_at_an_early_switch(kind: Kind, after: int, tmp_path: Path) -> None:
    assert_resume_is_exact(two_stages(feddyn(0.1), scaffold(allow_momentum=True)), kind, tmp_path, after)


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 4, 5, 6])
def test_a_run_of_a_config_resumes_exactly_around_the_switch(after: int, tmp_path: Path) -> None:
    """The run stops after this round, and the rule then reads the history from the file."""
    threshold, last = a_threshold()
    line = f"feddyn(alpha=0.1) -> fedavg@{RULE.format(threshold)}"
    experiment = resolve(override(read("quickstart"), {**SMALL, "method": line}))
    whole = execute(experiment, tmp_path / "whole")
    with pytest.raises(Interrupted):
        execute(experiment, tmp_path / "broken", stop_after(after))
    broken = resume(tmp_path / "broken")
    assert methods_of(broken.history).count("feddyn") == last
    assert [without_time(line) for line in broken.history] == [without_time(line) for line in whole.history]
    for name in ("model.safetensors", "average.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "broken" / name).read_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "feddyn -> fedavg@platou"}, "a rule: plateau, proposition1. Did you mean 'plateau'"),
        ({"method": "feddyn -> fedavg@proposition1(smoth=3)"}, "unknown key when.smoth. Did you mean"),
        ({"method": "fedavg -> feddyn@proposition1"}, "fedavg has neither h nor g_k"),
        ({"method": "feddyn-no-reg -> fedavg@proposition1"}, "feddyn-no-reg has neither"),
        ({"method": "feddyn -> fedavg@proposition1(threshold=-1)"}, "need threshold ≥ 0"),
        ({"method": "feddyn -> fedavg@proposition1(smooth=0)"}, r"proposition1\(smooth=0\): need a whole"),
        ({"method": "feddyn -> fedavg@proposition1(threshold=much)"}, "when.threshold = 'much'"),
        ({"method": "feddyn -> fedavg@plateau(patience=0)"}, r"plateau\(patience=0\): need a whole"),
        ({"method": "feddyn -> fedavg@plateau(by=-0.1)"}, "by ≥ 0"),
        ({"method": "feddyn -> fedavg@plateau(metric=drift.h)"}, "need an accuracy or a loss"),
        ({"method": "feddyn -> fedavg@plateau(metric=all.global.accuracy)"}, "no such metric"),
        ({"method": "feddyn -> fedavg@plateau(metric=last-two.global.accuracy)"}, "no such metric"),
        ({"method": "feddyn -> fedavg@plateau(metric=personal.local.accuracy.tuned)"}, "no such metric"),
        ({"method": "feddyn", "then": [{"method": "fedavg"}]}, "need at .* or when"),
        ({"method": "feddyn", "then": [{"method": "fedavg", "when": {}}]}, "when = {}: need a table"),
        ({"method": "feddyn", "then": [{"method": "fedavg", "when": "soon"}]}, "when.name = 'soon'"),
        ({"method": "feddyn", "then": [{"method": "fedavg", "when": "plateau", "at": -1}]}, "then.at = -1"),
        ({"method": "feddyn", "then": [{"method": "fedavg", "when": "plateau", "at": 1.5}]}, "then.at = 1.5"),
    ],
)  # fmt: skip
def test_wrong_rules_are_refused_before_anything_runs(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        assemble(resolve({**override(read("quickstart"), SMALL), **settings}))


def test_metrics_that_will_be_there_are_taken() -> None:
    for metric, extra in (
        ("all.global.accuracy", {"evaluation.all": True}),
        ("personal.local.loss.tuned", {"evaluation.tune": "head", "evaluation.tune_every": 2}),
        ("personal.local.accuracy.unseen", {}),
        ("average.local.loss", {}),
        ("train.loss", {}),
    ):
        line = f"feddyn -> fedavg@plateau(metric={metric})"
        assemble(resolve(override(read("quickstart"), {**SMALL, **extra, "method": line})))


def test_every_rule_refuses_nonsense_in_python_too() -> None:
    assert set(RULES) == {"plateau", "proposition1"}
    with pytest.raises(RequestError, match="proposition1"):
        kedge.proposition1(threshold=float("nan"))
    with pytest.raises(RequestError, match="plateau"):
        kedge.plateau(by=float("nan"))
    for algorithm in (fedavg(), feddyn_no_reg(), scaffold()):
        with pytest.raises(RequestError, match=algorithm.name):
            kedge.proposition1().with_measurements(algorithm)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.5, 0.75])
@pytest.mark.parametrize("estimate", ["h", "clients"])
def test_the_threshold_of_a_run_switches_the_same_run_at_that_share(estimate: str, share: float) -> None:
    """The reference has a threshold that is never met, so that it measures the clients' spread, too."""
    rule = f"proposition1(estimate={estimate}, smooth=2, threshold={{}})"
    settings = {"method": f"feddyn(alpha=0.01) -> fedavg@{rule.format(1e9)}", "optimizer.lr": 0.02}
    reference = small(**settings)
    assert methods_of(reference) == ["feddyn"] * 8
    threshold = kedge.threshold_of(reference, share, estimate, smooth=2)  # type: ignore[arg-type]  # a word
    again = small(**{**settings, "method": f"feddyn(alpha=0.01) -> fedavg@{rule.format(threshold)}"})
    assert methods_of(again) == ["feddyn"] * int(8 * share) + ["fedavg"] * (8 - int(8 * share))


def test_what_the_page_on_switching_writes_is_understood() -> None:
    page = (Path(__file__).parents[2] / "docs/switching.md").read_text()
    lines = page.split("```")[1].strip().splitlines()
    stages = [re.split(r"\s{3,}", line)[0] for line in lines]
    assert len(stages) == 5
    for line in stages:
        task = assemble(resolve(override(read("quickstart"), {**SMALL, "rounds": 200, "method": line})))
        assert len(task.stages) == line.count("->") + 1
    table = tomllib.loads(page.split("```toml\n")[1].split("```")[0])
    experiment = resolve(override({**read("quickstart"), **table}, SMALL))
    assert experiment.starts == [7]  # 0.9 of 8 rounds, at the latest
    assert experiment.then[0]["when"]["patience"] == 5
