"""The language of docstrings, comments, names and docs only gets better.

The counts in language_counts.json say how often each pattern of language.py occurs in each room. A count may
fall, never rise. After improving a room, or after moving files from one room to another, run

    python -m tests.test_language --update

which lowers the counts. It raises the count of a room only if the pattern does not occur more often in all
rooms together. If language_counts.json conflicts in a merge, take either version and run the command. After
adding a pattern, delete the file first.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.language import PATTERNS, ROOT, Finding, counts, findings, findings_in, matches

FILE = Path(__file__).parent / "language_counts.json"
COMMAND = "python -m tests.test_language --update"
SHOWN = 12  # findings of a room that an error shows
Counts = dict[str, dict[str, int]]

BAD = {
    "What the rows of a round begin with, and when they end.": "clause as a docstring",
    "How many runs fit.": "clause as a docstring",
    "Who takes part in a round.": "clause as a docstring",
    "The order of the round, and what is computed before it.": "what … as a noun",
    "The means of those that took part.": "those that, whatever",
    "The clients of a round; who rests keeps its memory.": "who without a person",
    "The stack of a run lies in memory once.": "lie, stand",
    "The formulas stand under the names.": "lie, stand",
    "The ends of all runs, which are told to the main thread.": "tell, hear, ask",
    "The loop asks the engine for a round.": "tell, hear, ask",
    "Zeros until the next batch comes.": "come, go on",
    "The run goes on with the newest checkpoint.": "come, go on",
    "The plans of a round, given back after it.": "give back, take in, put back",
    "A checkpoint for the round at hand.": "machinery as a person",
    "Of four values one counts, and a code says which.": "inverted order",
    "Multiply-adds of one optimizer step on so many samples.": "so many",
    "The leaves with these names that are there.": "there, one as a placeholder",
    "The local models and the shared ones.": "there, one as a placeholder",
    "The panel of a plot; None where no run has a value.": "where instead of if",
    "A program, written down operator by operator.": "no term of art",
    "Normalise the images of a batch.": "British spelling",
}
GOOD = (
    "Initial state of the stacked clients, and the part that can be prepared one round ahead.",
    "Engine settings recorded when the run started, or None.",
    "Client parameters are stored once.",
    "The forward pass saves each window's argmax (0 to 3).",
    "Multiply-adds of one optimizer step on `samples` samples.",
    "Record a CUDA event.",
    "Whether the run is finished.",
    "Raise an error that says what to do.",
    "The loss where the mask is 1, and 0 elsewhere; the bound lies between the quartiles.",
    "A tensor of ones, from which the gradients come from both sides.",
    "Show a stand-in for the standard network. There are no frozen parameters.",
    "Call `what_it_holds` for those models.",
)
BAD_NAMES = {
    ("function", "held"): "participle as a function name",
    ("function", "taken_up"): "participle as a function name",
    ("function", "effect:recorded"): "participle as a function name",
    ("function", "tell_costs"): "household word as a function name",
    ("function", "together"): "household word as a function name",
    ("class", "Asked"): "riddle as a class name",
    ("file", "begun"): "riddle as a file name",
    ("file", "utils"): "riddle as a file name",
}
GOOD_NAMES = (
    ("function", "save_checkpoint"),
    ("function", "weighted_mean"),
    ("function", "computed"),
    ("class", "Assignment"),
    ("file", "runner"),
)
SOURCE = '''"""A module with findings.

Nothing else
comes here.
"""


def taken() -> None:
    value = 1  # what is told
    # Two lines of a comment,
    # which stand together.


def renamed() -> None:
    """Rename a file."""
'''


@pytest.mark.parametrize("sentence", BAD)
def test_a_seeded_bad_sentence_is_found(sentence: str) -> None:
    assert BAD[sentence] in {name for name, _ in matches(sentence)}


@pytest.mark.parametrize("sentence", GOOD)
def test_a_seeded_good_sentence_is_not(sentence: str) -> None:
    assert not list(matches(sentence))


def test_seeded_bad_names_are_found_and_good_ones_are_not() -> None:
    for (kind, name), pattern in BAD_NAMES.items():
        assert [found for found, _ in matches(name, kind)] == [pattern]  # type: ignore[arg-type]  # a Kind
    assert not [found for kind, name in GOOD_NAMES for found in matches(name, kind)]  # type: ignore[arg-type]


def test_every_pattern_has_a_seeded_example() -> None:
    assert {pattern.name for pattern in PATTERNS} == {*BAD.values(), *BAD_NAMES.values()}


def test_findings_have_the_lines_of_docstrings_comments_and_names(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    assert sorted((finding.line, finding.pattern) for finding in findings_in(file)) == [
        (3, "come, go on"),
        (8, "participle as a function name"),
        (9, "tell, hear, ask"),
        (9, "what … as a noun"),
        (10, "lie, stand"),
        (14, "participle as a function name"),
    ]


def test_a_count_that_rises_is_an_error_and_one_that_falls_is_not() -> None:
    recorded = {"src/core": {"so many": 2}}
    found = [Finding("so many", ROOT / "src/kedge/core/tree.py", 3, "so many rows")] * 3
    assert not problems(recorded, found[:1])
    assert not problems(recorded, found[:2])
    [message] = problems(recorded, found)
    assert "src/core: 3 × so many (2 recorded)" in message
    assert "src/kedge/core/tree.py:3: so many rows" in message
    assert "Name the parameter" in message
    assert problems({}, found[:1])


def test_an_update_lowers_counts_and_follows_moved_files() -> None:
    recorded = {"src/core": {"so many": 2, "lie, stand": 1}, "src/nn": {"so many": 1}}
    lower = {"src/core": {"so many": 1}, "src/nn": {"so many": 1}}
    assert updated(recorded, lower) == lower
    assert updated(recorded, {"src/core": {"so many": 4}}) == {"src/core": {"so many": 2}}
    moved = {"src/data": {"so many": 3}}
    assert updated(recorded, moved) == moved


@pytest.mark.slow
def test_the_language_gets_no_worse() -> None:
    found = problems(json.loads(FILE.read_text()), findings())
    assert not found, "\n\n".join(found)


def problems(recorded: Counts, found: Sequence[Finding]) -> list[str]:
    """An error message for every count that is higher than recorded."""
    messages = []
    for room, row in counts(found).items():
        for name, count in row.items():
            limit = recorded.get(room, {}).get(name, 0)
            if count > limit:
                here = [finding for finding in found if (finding.room, finding.pattern) == (room, name)]
                messages.append(problem(name, limit, here))
    return messages


def problem(name: str, limit: int, here: Sequence[Finding]) -> str:
    """The error message for a pattern that occurs more than `limit` times in a room."""
    recent = sorted(here, key=lambda finding: -finding.file.stat().st_mtime)
    lines = [f"  {one.file.relative_to(ROOT)}:{one.line}: {one.text}" for one in recent[:SHOWN]]
    more = [f"  and {len(here) - SHOWN} more"] if len(here) > SHOWN else []
    [instead] = [pattern.instead for pattern in PATTERNS if pattern.name == name]
    head = f"{here[0].room}: {len(here)} × {name} ({limit} recorded). {instead}"
    moved = f"  If you only moved files between rooms: {COMMAND}"
    return "\n".join([f"{head} The last edited files first:", *lines, *more, moved])


def updated(recorded: Counts, current: Counts) -> Counts:
    """The new counts: lowered, or raised in rooms to which files were moved."""
    result: Counts = {}
    for pattern in PATTERNS:
        before = {room: row[pattern.name] for room, row in recorded.items() if pattern.name in row}
        now = {room: row[pattern.name] for room, row in current.items() if pattern.name in row}
        rises = sum(now.values()) > sum(before.values())
        for room, count in now.items():
            lower = min(count, before.get(room, 0)) if rises else count
            if lower:
                result.setdefault(room, {})[pattern.name] = lower
    return {room: dict(sorted(result[room].items())) for room in sorted(result)}


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(f"usage: {COMMAND}")
    latest = counts(findings())
    latest = updated(json.loads(FILE.read_text()), latest) if FILE.is_file() else latest
    FILE.write_text(json.dumps(latest, indent=1, ensure_ascii=False) + "\n")
