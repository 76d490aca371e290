"""A method string beside a schedule: they combine, in every place that takes both, or are refused."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import kedge

import kedge as library
from kedge.config.document import override, read
from kedge.config.experiment import Experiment, resolve
from kedge.config.protocols import PROTOCOLS, Protocol
from kedge.core.errors import RequestError

FEDBUG = {"name": "fedbug", "ratio": 0.25}
BESIDE = [
    'method = "fedavg"\nschedule = { name = "fedbug", ratio = 0.25 }',
    'method = "fedavg"\nschedule = "fedbug(ratio=0.25)"',
    'method = "fedbug(ratio=0.25) + fedavg"\nschedule = "fedbug(ratio=0.25)"',
    'method = "fedavg"\n[schedule]\nname = "fedbug"\nratio = 0.25',
    'method = { name = "fedavg" }\nschedule = "fedbug(ratio=0.25)"',
    'schedule = "fedbug(ratio=0.25)"',
]
THEN = '[[then]]\nat = 1\nmethod = "fedavg"'
SMALL = """rounds = 2
model = "mlp(hidden=[8])"
training = { batch = 5 }
engine = { name = "sequential", threads = 1 }
"""


def resolved(text: str, **settings: Any) -> Experiment:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return resolve(override({"name": "x", **tomllib.loads(text)}, given))


@pytest.mark.parametrize("text", BESIDE)
def test_a_schedule_beside_a_method_is_the_schedule_of_that_method(text: str) -> None:
    experiment = resolved(text)
    assert experiment.schedule == FEDBUG
    assert experiment.label == "fedbug+fedavg"
    assert experiment.toml() == resolved('method = "fedbug(ratio=0.25) + fedavg"').toml()


@pytest.mark.parametrize("text", BESIDE)
def test_a_following_stage_combines_its_method_and_schedule(text: str) -> None:
    if "method" not in text:
        text += '\nmethod = "fedavg"'
    row = text.replace("[schedule]\nname", "[then.schedule]\nname")
    experiment = resolved(f'method = "feddyn"\n[[then]]\nat = 0.5\n{row}')
    assert experiment.schedule == {"name": "all"}
    assert experiment.label == "feddyn->fedbug+fedavg"
    assert experiment.then[0]["schedule"] == FEDBUG


@pytest.mark.slow
def test_training_goes_by_the_schedule_beside_the_method(tmp_path: Path) -> None:
    models = []
    for number, text in enumerate([BESIDE[0], 'method = "fedbug(ratio=0.25)+fedavg"', 'method = "fedavg"']):
        file = tmp_path / f"run{number}.toml"
        file.write_text(SMALL + text)
        result = library.run(file, progress=False)
        models.append(result.model)
    assert all(v.equal(models[1][k]) for k, v in models[0].items())
    assert not all(v.equal(models[2][k]) for k, v in models[0].items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "fedavg"\nschedule = "fedbug(ratio"', "schedule = 'fedbug(ratio': cannot read it. Write"),
        ('method = "fedavg"\nschedule = "fedbu"', "schedule.name = 'fedbu': no such name. Did you mean 'fed"),
        ('method = "fedavg"\nschedule = 5', "schedule = 5: need a table with a name"),
        ('method = "fedbug+fedavg"\nschedule = 5', "schedule = 5: need a table with a name"),
        (
            'method = "fedbug(ratio=0.1)+feddyn(alpha=0.1) -> fedavg@0.5"\nschedule = "top-down"',
            "method = 'fedbug(ratio=0.1)+feddyn(alpha=0.1) -> fedavg@0.5' names the schedule "
            "'fedbug(ratio=0.1)', but schedule = 'top-down' is different. Name one: "
            "method = 'feddyn(alpha=0.1) -> fedavg@0.5' beside schedule = 'top-down', or "
            "method = 'fedbug(ratio=0.1)+feddyn(alpha=0.1) -> fedavg@0.5' without the key schedule.",
        ),
        ('method = "fedbug+fedavg"\nschedule = "all"', "but schedule = 'all' is different"),
        ('[[then]]\nat = 1\nmethod = "fedavg"\nschedule = "fedbug(ratio"', "then.schedule = 'fedbug(ratio'"),
        (
            '[[then]]\nat = 1\nmethod = "fedbug+fedavg"\nschedule = "top-down"',
            "then.method = 'fedbug+fedavg' names the schedule 'fedbug', but then.schedule = 'top-down' is",
        ),
        (
            'method = "feddyn -> fedavg"\n[[then]]\nat = 1\nmethod = "scaffold"',
            "method = 'feddyn -> fedavg' names later stages, but then = ",
        ),
    ],
)  # fmt: skip
def test_what_contradicts_itself_or_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        resolved(text)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "settings", "label"),
    [
        (BESIDE[0], {"method": "feddyn"}, "fedbug+feddyn"),
        (BESIDE[0], {"method": "top-down+feddyn"}, "top-down+feddyn"),
        (BESIDE[0], {"method": {"name": "feddyn"}}, "fedbug+feddyn"),
        (BESIDE[0], {"schedule": "all"}, "fedavg"),
        ('method = "fedbug+fedavg"', {"method": "feddyn"}, "feddyn"),
        ('method = "fedbug+fedavg"', {"schedule": "top-down"}, "top-down+fedavg"),
        ('method = "fedbug+fedavg"', {"schedule.name": "top-down"}, "top-down+fedavg"),
        ('method = "fedavg"', {"schedule": "fedbug", "method": "feddyn"}, "fedbug+feddyn"),
        ('method = "feddyn -> fedavg"', {"method": "scaffold"}, "scaffold"),
        ('method = "feddyn -> fedavg"', {"method.alpha": 0.5}, "feddyn->fedavg"),
        (f'method = "feddyn"\n{THEN}', {"method": "scaffold"}, "scaffold->fedavg"),
        (f'method = "feddyn"\n{THEN}', {"method": "fedavg -> fedprox"}, "fedavg->fedprox"),
        ('schedule = "fedbug(ratio"', {"schedule": "fedbug"}, "fedbug+fedavg"),
    ],
)  # fmt: skip
def test_a_setting_replaces_what_it_names_and_nothing_else(
    text: str, settings: dict[str, Any], label: str
) -> None:
    document = {"name": "x", **tomllib.loads(text)}
    assert resolve(override(document, settings)).label == label
    assert resolve(override(override(document, {}), settings)).label == label


def test_arguments_of_a_schedule_can_be_set_wherever_it_is_named() -> None:
    for text in ('method = "fedbug+fedavg"', BESIDE[0], BESIDE[1]):
        assert resolved(text, schedule__ratio=0.1).schedule == {"name": "fedbug", "ratio": 0.1}
    both = {"schedule.ratio": 0.1, "method": "fedbug+feddyn"}  # in either order
    assert resolve(override({"name": "x"}, both)).schedule == {"name": "fedbug", "ratio": 0.1}


@pytest.mark.parametrize("key", ["schedule", "schedule.name"])
def test_two_settings_may_not_name_two_schedules(key: str) -> None:
    with pytest.raises(
        RequestError, match=r"method = 'top-down.fedavg' names the schedule 'top-down', but sched"
    ):
        override({"name": "x"}, {key: "fedbug", "method": "top-down+fedavg"})


def test_a_resolved_file_reads_as_before_and_takes_another_method() -> None:
    text = resolved('method = "fedbug(ratio=0.25)+feddyn -> top-down+fedavg@0.5"').toml()
    assert resolved(text).toml() == text
    assert resolved(text, method="vanilla+scaffold -> fedavg@0.2").label == "vanilla+scaffold->fedavg"


def test_a_protocol_s_schedule_lies_under_the_document_s(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = Protocol("", "", {"schedule": {"name": "fedbug", "ratio": 0.25}}, weights="size")
    monkeypatch.setitem(PROTOCOLS, "scheduled", preset)
    head = 'protocol = "scheduled"\n'
    assert resolved(head).label == "fedbug+fedavg"
    assert resolved(f'{head}method = "feddyn"').schedule == FEDBUG
    assert resolved(f'{head}method = "top-down+feddyn"').label == "top-down+feddyn"
    assert resolved(f'{head}method = "feddyn"\nschedule = "all"').label == "feddyn"
    assert resolved(f'{head}method = "feddyn"\nschedule = {{ ratio = 0.5 }}').schedule["ratio"] == 0.5
    assert resolved('protocol = "feddyn"\n' + BESIDE[0]).label == "fedbug+fedavg"


def planned(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "grid.toml"
    file.write_text(text)
    answer = kedge("sweep", file, "--dry-run", "--json")
    return [row["method"] for row in answer.json()["cells"]] if answer.code == 0 else [answer.err]


def test_a_grid_varies_methods_under_a_fixed_schedule_and_schedules_over_methods(tmp_path: Path) -> None:
    methods = '[grid]\nmethod = ["feddyn", "scaffold"]\n'
    schedules = 'schedule = ["all", "fedbug(ratio=0.25)"]\n'
    assert planned(tmp_path, f"{BESIDE[0]}\n{methods}") == ["fedbug+feddyn", "fedbug+scaffold"]
    assert planned(tmp_path, f'method = "fedbug+fedavg"\n{methods}') == ["feddyn", "scaffold"]
    assert planned(tmp_path, f'method = "feddyn"\n[grid]\n{schedules}') == ["feddyn", "fedbug+feddyn"]
    assert planned(tmp_path, f"[grid]\n{schedules}method = ['feddyn']") == ["feddyn", "fedbug+feddyn"]
    (error,) = planned(tmp_path, f"[grid]\n{schedules}method = ['top-down+feddyn']")
    assert "cell schedule=all,method=top-down+feddyn: method = 'top-down+feddyn' names the schedule" in error
    (error,) = planned(tmp_path, f'{BESIDE[0]}\n[grid]\nmethod = ["fedavg", "fedbug(ratio=0.25)+fedavg"]')
    assert "are the same experiment" in error


def test_methods_on_the_command_line_replace_method_schedule_and_stages(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'{BESIDE[0]}\n[[then]]\nat = 0.5\nmethod = "scaffold"\n')
    answer = kedge("cost", file, "--methods", "fedavg, fedbug+feddyn -> fedavg", "--json")
    assert [run["method"] for run in answer.json()["runs"]] == ["fedavg", "fedbug+feddyn->fedavg"]
    assert "schedule and later stages" in " ".join(kedge("run", "--help").out.replace("│", " ").split())
    for command in ("run", "cost"):
        for setting in ("schedule=top-down", "method.alpha=0.3"):
            answer = kedge(command, file, "--methods", "fedavg, feddyn", "--set", setting)
            assert answer.code == 2
            assert f"--set {setting.partition('=')[0]}=… has no effect, because --methods" in answer.err


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('rounds = 7\nmethod = "fedavg"\n', encoding="utf-8-sig")
    assert read(tmp_path / "my.toml")["rounds"] == 7
