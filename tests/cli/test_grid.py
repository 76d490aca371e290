"""The grid of a sweep: its cells, their names, and wrong requests."""

import re
from pathlib import Path

import pytest
from tests.cli.command import kedge
from tests.cli.grids import CELLS, GRID, written

from kedge.config.grid import cell_names


def test_a_dry_run_shows_the_cells_and_makes_nothing(tmp_path: Path) -> None:
    file, out = written(tmp_path, GRID), tmp_path / "out"
    plan = kedge("sweep", file, "--seeds", "3", "--seed", "5", "--out", out, "--dry-run", "--json").json()
    assert (plan["runs"], plan["rounds"], plan["groups"]) == (12, 36, 2)
    assert [row["name"] for row in plan["cells"]] == CELLS
    assert [row["method"] for row in plan["cells"]] == ["fedavg"] * 2 + ["fedbug+feddyn"] * 2
    assert all(row["seeds"] == [5, 6, 7] and row["rounds"] == 3 for row in plan["cells"])
    shown = kedge("sweep", file, "--seeds", "3", "--out", out, "--dry-run")
    assert all(cell in shown.out for cell in CELLS)
    assert "4 cells, 12 runs, 36 rounds; 2 groups that can train side by side" in shown.out
    assert not out.exists()


def test_the_grid_of_the_docs_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/sweeps.md").read_text()
    (text,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "docs.toml").write_text(text)
    plan = kedge("sweep", tmp_path / "docs.toml", "--dry-run", "--json").json()
    assert (len(plan["cells"]), plan["groups"]) == (12, 3)
    assert f"`{plan['cells'][0]['name']}/seed0`" in page


def test_a_shipped_experiment_takes_a_grid_from_the_command_line() -> None:
    words = ("--set", 'grid.method=["fedavg", "feddyn"]', "--set", "grid.partition.alpha=[0.5]")
    plan = kedge("sweep", "quickstart", *words, "--dry-run", "--json").json()
    assert [row["name"] for row in plan["cells"]] == [
        "method=fedavg,partition.alpha=0.5",
        "method=feddyn,partition.alpha=0.5",
    ]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("", "grid = {}: need a table [grid] with a list of values for each key, such as method ="),
        ("method = []", "grid.method = []: need at least one value"),
        ("method = 'fedavg'", "grid.method = 'fedavg': need a list of values, such as ['fedavg']"),
        ("partition.alpha = 0.1", "grid.partition.alpha = 0.1: need a list of values, such as [0.1]"),
        ("'partition.alfa' = [0.1]", "grid, cell partition.alfa=0.1: unknown key partition.alfa. Did you m"),
        ("trainin.epochs = [1, 2]", "grid, cell trainin.epochs=1: unknown key trainin. Did you mean 'train"),
        ("method = ['fedavg', 'fedavgg']", "cell method=fedavgg: method = 'fedavgg': no method or schedule"),
        ("training.epochs = [1, 1.5]", "cell training.epochs=1.5: training.epochs = 1.5"),
        ("method = ['fedavg', 'feddyn(alpha=0)']", "cell method=feddyn-alpha-0: feddyn(alpha=0.0): need"),
        ("partition.alpha = [0.1, -1]", "cell partition.alpha=-1: "),
        ("method = ['fedavg', 'fedavg']", "['fedavg', 'fedavg']: 'fedavg' is in the list twice"),
        ("partition.alpha = [0.1, 0.10]", "grid.partition.alpha = [0.1, 0.1]: 0.1 is in the list twice"),
        (
            "method = ['feddyn', 'feddyn(alpha=0.01)']",
            "grid: method=feddyn and method=feddyn-alpha-0.01 are the same experiment",
        ),
        ("seed = [0, 1]", "grid.seed = [0, 1]: use --seeds N"),
        ("name = ['a', 'b']", "grid.name = ['a', 'b']: the name does not change a run"),
        ("method = ['fedavg']\n'method.alpha' = [0.1]", "cell method=fedavg,method.alpha=0.1: unknown key"),
    ],
)  # fmt: skip
def test_a_bad_grid_is_refused_before_anything_runs(grid: str, message: str, tmp_path: Path) -> None:
    answer = kedge("sweep", written(tmp_path, grid), "--out", tmp_path / "out")
    assert answer.code == 2, answer
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name an experiment with a table [grid]"),
        (["quickstart"], "the experiment has no table [grid]"),
        (["FILE", "--seeds", "0"], "--seeds 0: need at least 1"),
        (["FILE", "--pack", "-1"], "--pack -1: need 0"),
        (
            ["FILE", "--set", "partition.alpha=3"],
            "partition.alpha is set on the command line, and the grid varies it",
        ),
        (["FILE", "--resume", "/nowhere"], "--resume continues the sweep with its own settings"),
        (["--resume", "/nowhere"], "--resume /nowhere: it contains no sweep"),
    ],
)
def test_a_wrong_request_says_why(words: list[str], message: str, tmp_path: Path) -> None:
    file = str(written(tmp_path, GRID))
    answer = kedge("sweep", *(file if word == "FILE" else word for word in words))
    assert answer.code == 2, answer
    assert message in answer.err


def test_names_of_cells_are_safe_and_their_own(tmp_path: Path) -> None:
    grid = (
        'partition = ["iid(clients=5)", { name = "iid", clients = 6 }]\n"model.hidden" = [[8], [8, 8]]\n'
        f'"training.batch" = {list(range(10, 12))}'
    )
    names = [
        row["name"] for row in kedge("sweep", written(tmp_path, grid), "--dry-run", "--json").json()["cells"]
    ]
    assert names[0] == "partition=iid-clients-5,model.hidden=8,training.batch=10"
    assert names[-1] == "partition=iid-clients-6,model.hidden=8-8,training.batch=11"
    assert len(set(names)) == 8
    own = cell_names([{"a": value} for value in ("x y", "xy", "x/y", "x-y", "../x", -1, 1, True, "é" * 300)])
    assert own[:8] == ["a=xy", "a=xy-2", "a=x-y", "a=x-y-2", "a=..-x", "a=-1", "a=1", "a=true"]
    long = cell_names([{"a": "b" * 300 + end} for end in "cd"])
    assert len(set(long)) == 2
    assert all(len(name) <= 200 for name in long)
