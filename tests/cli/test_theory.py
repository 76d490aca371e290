"""kedge theory as a user types it: the table, JSON, the plot and wrong requests."""

import importlib
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.command import kedge

from kedge.report.plots import png
from kedge.report.plots.theory import theory_png
from kedge.report.tables.theory import theory_table

SMALL = ("--seeds", "6", "--rounds", "12")


def test_the_table_says_what_was_simulated_and_what_came_out() -> None:
    answer = kedge("theory")
    assert answer.code == 0, answer
    lines = [line.rstrip() for line in answer.out.splitlines()]
    assert lines[0] == (
        "f = n·v, two layers; 2 clients; 50 seeds; 80 rounds; 50 local steps; learning rate 0.1; "
        "gradient factor 2"
    )
    heads = re.split(r"  +", lines[1])
    assert heads[:5] == ["method", "frozen", "r", "theory", "printed"]
    rows = {re.split(r"  +", line)[0]: re.split(r"  +", line) for line in lines[2:7]}
    assert list(rows) == ["fedavg", "fedbug, 1 step", "fedbug, P = 0.2", "fedbug, P = 0.4", "fedbabu"]
    assert [row[1] for row in rows.values()] == ["0", "1", "5", "10", "always"]
    assert [rows[name][9] for name in ("fedavg", "fedbug, 1 step", "fedbug, P = 0.4")] == [
        "–",
        "50/50",
        "50/50",
    ]
    assert re.match(
        r"theory and simulation, fedavg: correlation 0\.99\d over 3,\d{3} rounds of 50 seeds, 0\.\d{3} in "
        r"the first round alone; \|r − theory\| \d\.\de-03 on average",
        lines[8],
    )
    assert lines[9].startswith("fedbug contracts faster than fedavg in 50/50 (fedbug, 1 step), 50/50 (")
    assert "Clients follow the true gradient of (f − 1)² (factor 2)." in lines
    assert re.fullmatch(r"simulated in \d\.\d\d s", lines[-1])
    assert float(lines[-1].split()[2]) < 10


def test_the_json_has_settings_and_every_number() -> None:
    words = ("--clients", "3", "--gradient", "1", "--steps", "20", "--lr", "0.05", "--frozen", "3", "--json")
    answer = kedge("theory", *SMALL, *words)
    assert answer.code == 0, answer
    found = answer.json()
    assert {key: found[key] for key in ("model", "clients", "seeds", "rounds", "steps", "lr")} == {
        "model": "multiplicative", "clients": 3, "seeds": 6, "rounds": 12, "steps": 20, "lr": 0.05,
    }  # fmt: skip
    assert (found["gradient"], found["flow"], found["least"], found["plot"]) == (1, False, 1e-12, None)
    assert [(one["method"], one["frozen"]) for one in found["methods"]] == [
        ("fedavg", 0), ("fedbug, 3 steps", 3), ("fedbabu", None),
    ]  # fmt: skip
    for one in found["methods"]:
        assert [len(row) for row in one["by_round"]["ratio"]] == [12] * 6
        assert len(one["loss"]["median"]) == 13


def test_flow_and_the_additive_model() -> None:
    flow = kedge("theory", *SMALL, "--flow")
    assert "gradient flow to convergence" in flow.out.splitlines()[0]
    assert (
        "the paper's local minimum has an extra ½ and n·v = 0.25: with it, rounds converge to a loss"
        in flow.out
    )
    additive = kedge("theory", *SMALL, "--model", "additive", "--clients", "4")
    assert additive.out.startswith("f = n + v, one layer and a bias; 4 clients;")
    assert "theory predicts the same ratio everywhere, so there is no correlation" in additive.out
    row = next(line for line in additive.out.splitlines() if line.startswith("fedavg"))
    assert row.split()[2:5] == ["0.8750", "0.8750", "0.7500"]


def test_the_gradient_s_factor_is_told_and_changes_the_result() -> None:
    half, true = (kedge("theory", *SMALL, "--gradient", factor) for factor in ("1", "2"))
    assert "Clients follow half the gradient of (f − 1)², as the paper prints it (factor 1)." in half.out
    assert "(factor 2)." in true.out
    rows = [next(line for line in one.out.splitlines() if line.startswith("fedbug")) for one in (half, true)]
    assert rows[0].split()[4] != rows[1].split()[4]


@pytest.mark.slow
def test_a_learning_rate_that_diverges_is_told_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "theory.png"
    answer = kedge("theory", *SMALL, "--lr", "1", "--plot", file)
    assert answer.code == 0, answer
    assert "fedavg: no round can be compared" in answer.out
    assert "diverged: fedavg in 6 seeds, fedbug, 1 step in 6 seeds" in answer.out
    assert "contracts faster" not in answer.out
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_picture_is_of_the_json_s_numbers(tmp_path: Path) -> None:
    """Read back from JSON, they draw the same bytes; other numbers draw others."""
    file = tmp_path / "theory.png"
    found = kedge("theory", *SMALL, "--plot", file, "--json").json()
    assert found["plot"] == str(file)
    assert theory_png(found) == file.read_bytes()
    assert list(tmp_path.iterdir()) == [file]
    others = kedge("theory", *SMALL, "--clients", "4", "--json").json()
    assert theory_png(others) != file.read_bytes()
    assert kedge("theory", *SMALL, "--plot", file).out.splitlines()[-1] == f"written: {file}"


def test_a_narrow_terminal_has_fewer_columns_and_none_cut() -> None:
    methods = kedge("theory", *SMALL, "--json").json()["methods"]
    for width, columns in ((80, 7), (139, 7), (140, 12)):
        file = StringIO()
        Console(width=width, file=file).print(theory_table(methods, width))
        lines = file.getvalue().splitlines()
        assert len(re.split(r"  +", lines[0].strip())) == columns
        assert "…" not in file.getvalue()
        assert len(lines) == 6


def test_few_steps_leave_out_what_cannot_be_frozen() -> None:
    def methods(*words: str) -> list[str]:
        return [one["method"] for one in kedge("theory", *SMALL, *words, "--json").json()["methods"]]

    assert methods("--steps", "5") == ["fedavg", "fedbug, 1 step", "fedbug, P = 0.4", "fedbabu"]
    assert methods("--steps", "1") == ["fedavg", "fedbabu"]
    assert "contracts faster" not in kedge("theory", *SMALL, "--steps", "1").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--model", "additiv"),
            "--model additiv: no such model. Did you mean 'additive'? Allowed: multiplicative, additive.",
        ),
        (("--clients", "1"), "--clients 1: need a whole number of at least 2."),
        (("--seeds", "0"), "--seeds 0: need a whole number of at least 1."),
        (("--rounds", "-1"), "--rounds -1: need a whole number of at least 1."),
        (("--steps", "0"), "--steps 0: need a whole number of at least 1."),
        (("--lr", "0"), "--lr 0: need a number above 0."),
        (("--lr", "nan"), "--lr nan: need a number above 0."),
        (("--lr", "inf"), "--lr inf: need a number above 0."),
        (
            ("--gradient", "3"),
            "--gradient 3: need 2 (the true gradient of (f − 1)²) or 1 (half of it).",
        ),
        (("--frozen", "0"), "--frozen 0: freezes 0 of 50 steps; need at least 1 (none is fedavg)"),
        (("--frozen", "50"), "--frozen 50: freezes 50 of 50 steps"),
        (("--frozen", "0.01"), "--frozen 0.01: freezes 0 of 50 steps"),
        (("--frozen", "1.5"), "--frozen 1.5: need a whole number of steps, such as 10, or a share"),
        (("--frozen", "half"), "--frozen half: need a whole number of steps"),
        (("--seeds", "1000000"), "numbers to store: at most 10,000,000"),
        (("--plot", "theory.svg"), "--plot theory.svg: need the name of a .png file"),
        (("--plot", "no/such/a.png"), "need the name of a .png file in an existing folder"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(words: tuple[str, ...], message: str) -> None:
    answer = kedge("theory", *words)
    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""


def test_without_matplotlib_the_picture_is_refused_and_the_table_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(png, "find_spec", lambda name: None)
    answer = kedge("theory", *SMALL, "--plot", tmp_path / "a.png")
    assert answer.code == 2
    assert "pip install 'kedge[plot]'. The table and --json need no matplotlib." in answer.err
    assert kedge("theory", *SMALL).code == 0


@pytest.mark.slow
def test_a_picture_that_cannot_be_written_is_an_error_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importlib.import_module("kedge.cli.actions.partition"), "write", full)
    answer = kedge("theory", *SMALL, "--plot", tmp_path / "a.png")
    assert answer.code == 1
    assert "a.png cannot be written: No space left on device. Name another file: --plot FILE." in answer.err
