"""Private runs: the same numbers on every engine, after resuming and in a pack; ε in every line."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.running.short_runs import errors_of, lines, members
from tests.running.short_runs import experiment as short_experiment
from torch import Tensor

import kedge
from kedge.config.experiment import Experiment
from kedge.core.random import Purpose, normals
from kedge.privacy.accountant import Accountant
from kedge.privacy.settings import Privacy
from kedge.running.execute import execute, resume
from kedge.running.result import Result

PRIVATE: dict[str, Any] = {
    "method": "fedavg(weights='uniform')",
    "training__on_divergence": "drop",
    "engine__precision": "fp64",
    "engine__name": "sequential",
    "privacy__clip": 0.7,
    "privacy__noise": 0.4,
}
POISSON = {"participation": {"rule": "poisson", "per_round": 2}}


def experiment(**settings: Any) -> Experiment:
    return short_experiment(**PRIVATE | settings)


def result(**settings: Any) -> Result:
    return execute(experiment(**settings), None)


def distance(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    return max(float((v - right[k]).abs().max()) for k, v in left.items())


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", ["fedavg(weights='uniform')", "feddyn", "fedavgm(weights='uniform')"])
def test_without_noise_and_with_a_large_clip_no_bit_of_the_run_changes(engine: str, method: str) -> None:
    plain = {k: v for k, v in PRIVATE.items() if not k.startswith("privacy")}
    changed: dict[str, Any] = {"engine__name": engine, "method": method}
    before = execute(short_experiment(**plain | changed), None)
    after = result(**changed, privacy__clip=1e6, privacy__noise=0.0)
    assert all(torch.equal(v, after.model[k]) for k, v in before.model.items())
    assert [line["privacy.epsilon"] for line in after.history] == [None] * 4


def test_a_small_clip_changes_the_run() -> None:
    assert (
        distance(result(privacy__noise=0.0).model, result(privacy__noise=0.0, privacy__clip=1e6).model) > 0.01
    )


@pytest.mark.parametrize("adaptive", [False, True])
def test_engines_and_chunks_agree(adaptive: bool) -> None:
    settings: dict[str, Any] = {"privacy__adaptive": adaptive, **POISSON, "rounds": 5}
    reference = result(**settings)
    for engine in ({"engine__name": "stacked"}, {"engine__name": "stacked", "engine__chunk": 1}):
        other = result(**settings, **engine)
        assert distance(reference.model, other.model) < 1e-9
        clips = [[line["privacy.clip"] for line in run.history] for run in (reference, other)]
        assert clips[0] == pytest.approx(clips[1], rel=1e-12)
    assert len({line["privacy.clip"] for line in reference.history}) == (5 if adaptive else 1)


def test_the_first_round_adds_the_noise_of_its_key() -> None:
    """Model with noise − model without = z·C / expected · normals, leaf by leaf."""
    noised, plain = result(rounds=1).model, result(rounds=1, privacy__noise=0.0).model
    for number, name in enumerate(sorted(plain)):
        position = torch.arange(plain[name].numel()).numpy()
        drawn = normals(0, Purpose.PRIVACY, round=0, client=number, position=position)
        expected = 0.4 * 0.7 / 3 * torch.from_numpy(drawn).reshape(plain[name].shape)
        torch.testing.assert_close(noised[name] - plain[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("round", [1, 2])
def test_later_rounds_have_noise_of_their_own(round: int) -> None:
    """With a tiny clip the model moves by the noise alone."""
    small: dict[str, Any] = {"privacy__clip": 1e-5, "privacy__noise": 3e4}
    before, after = (result(**small, rounds=rounds).model for rounds in (round, round + 1))
    for number, name in enumerate(sorted(before)):
        position = torch.arange(before[name].numel()).numpy()
        drawn = normals(0, Purpose.PRIVACY, round=round, client=number, position=position)
        expected = 0.1 * torch.from_numpy(drawn).reshape(before[name].shape)
        torch.testing.assert_close(after[name] - before[name], expected, rtol=0, atol=1e-5)


def test_a_round_without_clients_releases_noise() -> None:
    """Without it, a model that stays the same would show that no client took part."""
    run = result(participation={"rule": "poisson", "share": 0.1}, rounds=8)
    empty = [n for n, line in enumerate(run.history) if n and not line["clients"]]
    assert empty
    for n in empty:
        before, after = (run.history[k]["distributed.global.loss"] for k in (n - 1, n))
        assert before != after


def test_every_line_has_epsilon_and_no_line_has_a_loss_of_the_clients() -> None:
    run = result(**POISSON, privacy__delta=1e-6)
    accountant = Accountant(Privacy(0.7, 0.4, delta=1e-6), 2 / 6)
    for line in run.history:
        assert line["privacy.epsilon"] == accountant.epsilon(line["round"])
        assert line["privacy.delta"] == 1e-6
        assert "train.loss" not in line
    unsampled = result()
    assert unsampled.history[-1]["privacy.epsilon"] == Accountant(Privacy(0.7, 0.4), 1.0).epsilon(4)


def test_a_run_that_is_not_private_has_no_values_of_privacy() -> None:
    plain = {k: v for k, v in PRIVATE.items() if not k.startswith("privacy")}
    history = execute(short_experiment(**plain), None).history
    assert not [key for line in history for key in line if key.startswith("privacy")]
    assert all("train.loss" in line for line in history)


def test_a_resumed_run_has_the_same_numbers(tmp_path: Path) -> None:
    whole = experiment(privacy__adaptive=True, **POISSON, rounds=6)
    execute(whole, tmp_path / "whole")
    execute(experiment(privacy__adaptive=True, **POISSON, rounds=4), tmp_path / "parts")
    config = tmp_path / "parts" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 4", "rounds = 6"))
    resume(tmp_path / "parts")
    for name in ("model", "average"):
        models = [load_file(tmp_path / run / f"{name}.safetensors") for run in ("whole", "parts")]
        assert all(torch.equal(v, models[1][k]) for k, v in models[0].items())
    first, second = (
        [{k: v for k, v in line.items() if k != "time"} for line in lines(tmp_path / run)]
        for run in ("whole", "parts")
    )
    assert first == second


def test_a_resumed_run_must_have_the_same_noise(tmp_path: Path) -> None:
    execute(experiment(), tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(
        config.read_text().replace("noise = 0.4", "noise = 0.1").replace("rounds = 4", "rounds = 6")
    )
    with pytest.raises(kedge.RequestError, match=r"privacy\.noise was 0\.4, and is 0\.1 now"):
        resume(tmp_path / "run")


def test_runs_of_a_pack_have_the_numbers_that_they_have_alone(tmp_path: Path) -> None:
    own: dict[str, Any] = {"engine__name": "stacked", "privacy__adaptive": True, **POISSON}
    runs = [
        experiment(**own, seed=seed, privacy__noise=noise) for seed, noise in ((0, 0.4), (1, 0.4), (0, 0.2))
    ]
    errors = errors_of(members(tmp_path, runs))
    assert set(errors.values()) == {None}
    for number, run in enumerate(runs):
        packed = load_file(tmp_path / f"run{number}" / "model.safetensors")
        assert distance(packed, execute(run, None).model) < 1e-9


def test_the_adaptive_clip_continues_in_the_next_stage() -> None:
    run = result(method="feddyn -> fedavg(weights='uniform')@0.5", privacy__adaptive=True)
    clips = [line["privacy.clip"] for line in run.history]
    assert len(set(clips)) == 4
    assert max(abs(after / before - 1) for before, after in pairwise(clips)) < 0.5


def test_a_client_that_is_not_finite_counts_as_zero() -> None:
    data = [kedge.Dataset(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(3)]
    broken = [*data[:2], kedge.Dataset(data[2].x.double() * 1e300, data[2].y)]
    module = torch.nn.Linear(4, 3)
    models = []
    for clients, expected in ((broken, 3), (data[:2], 2)):
        run = kedge.train(
            module, clients, method=kedge.fedavg("uniform"), rounds=1, on_divergence="drop",
            privacy=Privacy(1e3, 0.0), precision="fp64", tune="off", engine="sequential", epochs=3,
        )  # fmt: skip
        assert [rejection["client"] for rejection in run.history[0]["rejected"]] == [2][: expected - 2]
        models.append({k: expected * (v - module.state_dict()[k]) for k, v in run.model.items()})
    assert distance(*models) < 1e-6


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_one_client_moves_the_released_model_by_at_most_the_clip(engine: Any) -> None:
    """The sensitivity that the accountant assumes: a client against the same client with a zero upload."""
    generator = torch.Generator().manual_seed(0)
    data = [kedge.Dataset(torch.randn(n, 4, generator=generator), torch.arange(n) % 3) for n in (8, 30, 9, 4)]
    module = torch.nn.Linear(4, 3)
    for client in range(4):
        without = list(data)
        without[client] = kedge.Dataset(data[client].x.double() * 1e300, data[client].y)
        runs = [
            kedge.train(
                module, clients, method=kedge.fedavg("uniform"), rounds=1, on_divergence="drop", epochs=3,
                privacy=Privacy(0.05, 0.0), precision="fp64", tune="off", engine=engine, compile="off",
            )
            for clients in (data, without)
        ]  # fmt: skip
        rejected = [[rejection["client"] for rejection in run.history[0]["rejected"]] for run in runs]
        assert rejected == [[], [client]]
        models = [run.model for run in runs]
        moved = sum(float(((v - models[1][k]) ** 2).sum()) for k, v in models[0].items()) ** 0.5
        assert moved == pytest.approx(0.05 / 4, rel=1e-9)  # every client's norm is above the clip


def test_a_call_of_train_resumes_with_the_same_privacy_only(tmp_path: Path) -> None:
    data = [kedge.Dataset(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(3)]
    module = torch.nn.Linear(4, 3)

    def call(rounds: int, out: str, privacy: Privacy | None, resume: bool = False) -> Result:
        return kedge.train(
            module, data, method=kedge.fedavg("uniform"), rounds=rounds, on_divergence="drop",
            privacy=privacy, engine="sequential", out=tmp_path / out, resume=resume,
        )  # fmt: skip

    private = Privacy(0.5, 1.0, adaptive=True)
    whole = call(4, "whole", private)
    call(2, "parts", private)
    for other in (None, Privacy(0.5, 0.9, adaptive=True)):
        with pytest.raises(kedge.RequestError, match="privacy"):
            call(4, "parts", other, resume=True)
    parts = call(4, "parts", private, resume=True)
    assert all(torch.equal(v, parts.model[k]) for k, v in whole.model.items())
    assert [line["privacy.epsilon"] for line in parts.history] == [
        line["privacy.epsilon"] for line in whole.history
    ]
