"""kedge audit as a user types it: the table, JSON, a page, and a method of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import kedge

METHOD = '''
"""Mine (Me, 2025): each client minimizes f_i(w) + μ/2 ‖w − wᵗ‖²."""
from dataclasses import dataclass, replace
import kedge
from kedge.core.correction import Correction
from kedge.core.tree import axpy, scale, sqnorm, sub, zeros

print("this file prints when it is read")
ROUNDS = []

@dataclass(frozen=True)
class Near(Correction):
    mu: float
    name = "near"
    def loss(self, step):
        return self.mu / 2 * sqnorm(sub(step.params, step.anchor))

class Detached(Near):
    def loss(self, step):
        return self.mu / 2 * sqnorm(sub({k: v.detach() for k, v in step.params.items()}, step.anchor))

class Counting(Near):
    def server(self, update, mean, state, cohort):
        ROUNDS.append(cohort.round)
        return scale(1 / len(ROUNDS), update), state

class Hooked(Near):
    def loss(self, step):
        return 0.0
    def gradient(self, grads, step):
        return {k: g + self.mu * (step.params[k] - step.anchor[k]) for k, g in grads.items()}

def mine(mu=0.3):
    return replace(kedge.fedavg(), name="mine", corrections=(Near(mu),))

def detached():
    return replace(mine(), corrections=(Detached(0.3),))

def counting():
    return replace(mine(), corrections=(Counting(0.3),))

def hooked():
    return replace(mine(), corrections=(Hooked(0.3),))

def objective(f, w, anchor, known):
    return f + known["correction"].mu / 2 * sqnorm(sub(w, anchor))

def doubled(f, w, anchor, known):
    return f + known["correction"].mu * sqnorm(sub(w, anchor))
'''


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's file in a new folder."""
    path = tmp_path / "my_method.py"
    path.write_text(METHOD)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.slow
def test_the_table_the_list_the_json_and_the_page_tell_the_same(tmp_path: Path) -> None:
    html = tmp_path / "audit.html"
    answer = kedge("audit", "top-down", "--json", "--html", html)
    assert answer.code == 0, answer
    result = answer.json()
    assert result["passed"]
    assert result["checks"] == len(result["rows"]) == sum(row["passed"] for row in result["rows"])
    alone, over = result["methods"]
    assert (alone["method"], over["method"]) == ("top-down", "top-down+fedavg")
    assert alone["formula"] == "In local step k = 1…K the last min(M, ⌈k·M / (ratio·K)⌉) units train"
    assert alone["kinds"]["resume"] is None
    assert over["kinds"]["frozen"] == {"checks": 4, "failed": 0, "error": None}
    assert over["kinds"]["resume"] == {"checks": 1, "failed": 0, "error": 0.0}
    assert sum(k["checks"] for m in result["methods"] for k in m["kinds"].values() if k) == result["checks"]
    text = html.read_text()
    assert "top-down+fedavg" in text
    assert f"{result['checks']} of {result['checks']} checks pass" in text
    assert list(tmp_path.iterdir()) == [html]
    table, listed = kedge("audit", "top-down").out, kedge("audit", "top-down", "--details").out
    assert table.splitlines()[0].split()[0] == "method"
    assert "units opened late" in listed
    assert "units opened late" not in table
    for out in (table, listed):
        assert out.splitlines()[-1] == f"{result['checks']} of {result['checks']} checks pass"


@pytest.mark.slow
def test_a_method_of_the_user_s_own_passes_beside_one_of_kedge(file: Path) -> None:
    answer = kedge("audit", f"{file}:mine", "fix-last", "--json")
    assert answer.code == 0, answer
    assert "this file prints" in answer.err
    own = answer.json()["methods"][-1]
    assert (own["method"], own["formula"]) == (
        "my_method.py:mine",
        "each client minimizes f_i(w) + μ/2 ‖w − wᵗ‖²",
    )
    asked = {kind for kind, cell in own["kinds"].items() if cell}
    assert asked == {"reduction", "gradient", "engines", "frozen", "resume", "value"}
    assert {row["method"] for row in answer.json()["rows"]} == {"my_method.py:mine", "fix-last"}


@pytest.mark.slow
def test_a_module_in_the_current_folder_is_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    answer = kedge("audit", "my_method:mine")
    assert answer.code == 0, answer
    assert answer.out.splitlines()[1].startswith("my_method:mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("detached", "✗ my_method.py:detached, gradient: finite differences"),
        ("counting", "✗ my_method.py:counting, resume: stopped and resumed"),
    ],
)
def test_a_broken_method_fails_and_the_message_names_the_check(
    file: Path, attribute: str, message: str
) -> None:
    answer = kedge("audit", f"{file}:{attribute}")
    assert answer.code == 1
    assert message in answer.out
    assert "✗" in answer.out.splitlines()[1]


@pytest.mark.slow
def test_a_gradient_hook_needs_the_objective_written_out(file: Path) -> None:
    words = ("audit", f"{file}:hooked")
    answer = kedge(*words, "--json")
    assert answer.code == 0, answer
    assert answer.json()["methods"][0]["kinds"]["gradient"] is None
    assert "--objective" in answer.json()["notes"][0]
    assert "my_method.py:hooked: its gradient is not checked" in kedge(*words).out
    right = kedge(*words, "--objective", f"{file}:objective", "--json").json()
    assert (right["passed"], right["notes"]) == (True, [])
    assert [row["check"] for row in right["rows"] if row["kind"] == "gradient"] == ["closed form"]
    wrong = kedge(*words, "--objective", f"{file}:doubled")
    assert wrong.code == 1
    assert "✗ my_method.py:hooked, gradient: closed form" in wrong.out


@pytest.mark.slow
def test_equal_names_in_two_files_are_told_apart(file: Path) -> None:
    other = file.parent / "other" / file.name
    other.parent.mkdir()
    other.write_text(METHOD)
    answer = kedge("audit", f"{file}:mine", f"{other}:mine", "--json")
    assert [m["method"] for m in answer.json()["methods"]] == [f"{file}:mine", f"{other}:mine"]


def test_wrong_requests_are_refused_before_anything_runs(file: Path) -> None:
    for words, message in (
        ((f"{file}:nine",), "has no 'nine'. Did you mean 'mine'?"),
        ((f"{file}",), "the name of the object is missing"),
        ((f"{file}:Near",), "needs arguments: mu"),
        (("fedprix",), "Did you mean 'fedprox'?"),
        (("fedprox", "--objective", f"{file}:objective"), "0 are named"),
        ((f"{file}:mine", f"{file}:hooked", "--objective", f"{file}:objective"), "2 are named"),
        ((f"{file}:mine", "--objective", f"{file}:ROUNDS"), "of type list: need a function"),
        (("protocol", "--html", file.parent), "need the name of a file in an existing folder"),
        (
            ("protocol", "--html", file.parent / "no" / "a.html"),
            "need the name of a file in an existing folder",
        ),
    ):
        answer = kedge("audit", *words)
        assert answer.code == 2, words
        assert message in answer.err
        assert answer.out == ""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
def test_a_terminal_shows_which_check_runs_and_the_output_has_none_of_it() -> None:
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "kedge", "audit", "fix-last"],
        stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "COLUMNS": "120", "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    shown = ""
    try:
        while piece := os.read(leader, 65536):
            shown += piece.decode(errors="replace")
    except OSError:  # Linux raises it if the other end is closed
        pass
    out = process.communicate()[0].decode()
    os.close(leader)
    assert process.returncode == 0
    assert "/2" in shown
    assert "fix-last, oracle: " in shown
    assert "\x1b" not in out
    assert "2 of 2 checks pass" in out
