"""Examples and the README's snippets run; the docs name what exists."""

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from types import FrameType

import click
import pytest
from docs.readme import readme
from tests.cli.command import kedge as kedge_command
from tests.test_architecture import ALLOWED
from typer.main import get_command

import kedge
from kedge.algorithms import METHOD_REGISTRY
from kedge.cli import app
from kedge.cli.actions.run import run_plan
from kedge.cli.commands.listing import KINDS
from kedge.config.document import SHIPPED, override, parsed_settings, read
from kedge.config.experiment import Experiment, resolve
from kedge.config.grid import cells
from kedge.config.method_string import as_text
from kedge.config.train_arguments import KEYS
from kedge.core.algorithm import Algorithm, LocalTraining, Stage
from kedge.core.correction import Cohort, Correction, End, Step
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.engines.engine import Engine

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "kedge"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def python(*words: str, folder: Path = ROOT) -> str:
    """The output of a Python program that runs in `folder`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=folder
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    assert "%" in python(str(example), folder=tmp_path)


@pytest.mark.slow
def test_the_readme_s_python_runs() -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert snippets
    for snippet in snippets:
        assert python("-c", snippet)


def test_the_readme_names_every_method() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in METHOD_REGISTRY)


@pytest.mark.slow
def test_shipped_experiments_resolve() -> None:
    for path in SHIPPED.glob("*.toml"):
        document = read(path)
        every = [cell.experiment for cell in cells(document)] if "grid" in document else [resolve(document)]
        assert {experiment.name for experiment in every} == {path.stem}


def rooms(page: str) -> dict[str, str]:
    """The table of rooms on the architecture page: each room, and the rooms that it may import."""
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\| (.*?) \|$", page, flags=re.MULTILINE)
    return dict(rows)


def test_the_architecture_page_has_a_row_for_every_room() -> None:
    """A room is a package below src/kedge."""
    inside = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.glob("*/**/__init__.py")}
    assert set(rooms(ARCHITECTURE.read_text())) == inside


def test_the_import_law_on_the_architecture_page_is_the_tested_one() -> None:
    table = {room: law for room, law in rooms(ARCHITECTURE.read_text()).items() if "/" not in room}
    for room, law in table.items():
        allowed = set(re.findall(r"`(\w+)`", law))
        bound = re.match(r"all up to `(\w+)`", law)
        if bound:
            order = list(table)
            allowed |= set(order[: order.index(bound[1]) + 1])
        assert allowed - {room} == ALLOWED[room] - {"version"}, room


def stops(page: str) -> list[tuple[str, str]]:
    """The stops of a round on the architecture page: file and function."""
    return re.findall(r"^\| \d+ \| \[.*?\]\((.*?)\) \| `([\w.]+)` \|", page, flags=re.MULTILINE)


def defined(file: Path) -> set[str]:
    """The functions and classes that a file defines; methods as `Class.method`."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{own.name}" for own in node.body if isinstance(own, ast.FunctionDef)}
    return names


def test_every_stop_of_a_round_on_the_architecture_page_exists() -> None:
    found = stops(ARCHITECTURE.read_text())
    assert len(found) >= 10
    for link, function in found:
        file = ARCHITECTURE.parent / link
        assert function in defined(file), (
            f"docs/architecture.md names {function} in {file.name}: rename it there"
        )


def in_order(calls: Sequence[tuple[str, str]], walk: Sequence[tuple[str, str]]) -> bool:
    """Whether every stop of a walk is called, each for the first time after the one before."""
    first = {call: number for number, call in reversed([*enumerate(calls)])}
    numbers = [first.get(stop, -1) for stop in walk]
    return min(numbers) >= 0 and numbers == sorted(numbers)


def test_a_round_passes_the_stops_of_the_architecture_page_in_their_order(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    package = str(Path(kedge.__file__).parent)

    def record(frame: FrameType, event: str, argument: object) -> None:
        call = (frame.f_code.co_filename.removeprefix(package), frame.f_code.co_qualname)
        if event == "call" and call not in seen:
            seen.add(call)
            calls.append(call)

    before = sys.getprofile()
    sys.setprofile(record)
    try:
        kedge_command("run", "quickstart", "--set", "rounds=1", "--out", tmp_path / "run", "--quiet")
    finally:
        sys.setprofile(before)
    page = ARCHITECTURE.read_text()
    walk = [(link.partition("src/kedge")[2], name) for link, name in stops(page)]
    assert in_order(calls, walk), [name for _, name in calls if name in {stop for _, stop in walk}]


def test_a_stop_in_the_wrong_place_is_found() -> None:
    calls = [("a.py", "f"), ("a.py", "g"), ("b.py", "f"), ("a.py", "f")]
    assert in_order(calls, calls[:3])
    assert not in_order(calls, [calls[1], calls[0]])
    assert not in_order(calls, [("c.py", "f")])


def test_a_stop_that_was_renamed_is_found() -> None:
    page = ARCHITECTURE.read_text().replace("`local_step` |", "`local_stride` |")
    missing = [name for link, name in stops(page) if name not in defined(ARCHITECTURE.parent / link)]
    assert missing == ["local_stride"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(text: str, folder: Path) -> list[str]:
    """The relative links of a page in `folder` that lead to no file, or to no heading of a page."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        path = folder / name
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    own = re.sub(r"\]\(#", f"](./{page.name}#", text)
    assert not broken_links(own, page.parent)


def test_a_broken_link_is_found() -> None:
    text = "[a](runs.md) [b](gone.md) [c](architecture.md#five-laws) [d](architecture.md#six-laws)"
    assert broken_links(text, ROOT / "docs") == ["gone.md", "architecture.md#six-laws"]


def glossary() -> list[str]:
    """The words of the glossary."""
    words = re.findall(r"^\| ([\w-]+) \|", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    return [word for word in words if word != "word"]


def test_the_glossary_is_sorted() -> None:
    words = glossary()
    assert len(words) > 50
    assert words == sorted(set(words))


def test_every_word_of_the_glossary_is_used_in_the_source() -> None:
    source = "\n".join(path.read_text().lower() for path in SOURCE.rglob("*.py"))
    unused = [word for word in glossary() if not uses(source, word)]
    assert not unused


def uses(source: str, word: str) -> bool:
    """Whether a text has the word or its plural, alone or as a part of a name."""
    singular = re.escape(word).replace(r"\-", "[-_]")
    plural = "leaves" if word == "leaf" else f"{singular}s"
    return re.search(rf"(?<![a-z])({singular}|{plural})(?![a-z])", source) is not None


def test_a_word_that_is_not_used_is_found() -> None:
    source = "the hand_over of leaves"
    assert [word for word in ("hand-over", "leaf", "over", "hands") if not uses(source, word)] == ["hands"]


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\((\w+\.md)\)", index))


def test_the_readme_has_the_table_of_methods_that_the_texts_make() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == readme(text), "README.md is out of date: run python -m docs.readme"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_readme_begins_with_quickstart_and_test() -> None:
    text = (ROOT / "README.md").read_text()
    block = re.search(r"```\n(.*?)```", text, flags=re.DOTALL)
    assert block
    assert [line.split("#")[0].strip() for line in block[1].splitlines()] == ["make quickstart", "make test"]


def long_lines(text: str) -> list[str]:
    """The lines of prose over 100 columns: neither tables nor code nor images."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [
        line for line in prose.splitlines() if len(line) > 100 and not line.startswith(("|", "![", "    "))
    ]


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda path: path.name)
def test_prose_is_wrapped_at_100_columns(page: Path) -> None:
    assert not long_lines(page.read_text())


def test_a_long_line_is_found() -> None:
    words = "word " * 21
    assert long_lines(f"# Page\n\n{words}\n\n| {words} |\n\n```\n{words}\n```\n") == [words]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_a_page_begins_with_what_its_reader_can_do_after_it(page: Path) -> None:
    _, blank, first, *_ = page.read_text().splitlines()
    assert not blank
    assert first.startswith("After this page you ")


def source_names(text: str) -> set[str]:
    """The source files and folders that a page names in code, such as `core/client.py` or `nn/gpu`."""
    tops = "|".join(path.name for path in SOURCE.iterdir() if path.is_dir())
    return set(re.findall(rf"`(?:src/kedge/)?((?:{tops})/[a-z0-9_./]*)`", text))


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert not [name for name in source_names(page.read_text()) if not (SOURCE / name).exists()]


CLASSES = (Algorithm, Cohort, Correction, End, Engine, LocalTraining, Model, Stage, Step)


def missing_attributes(text: str) -> list[str]:
    """The names such as `Algorithm.schedule` in code that the class does not have."""
    missing = []
    for one in CLASSES:
        for name in re.findall(rf"`(?:kedge\.)?{one.__name__}\.(\w+)", text):
            if not hasattr(one, name) and name not in inspect.get_annotations(one):
                missing.append(f"{one.__name__}.{name}")
    return missing


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda path: path.name)
def test_attributes_that_a_page_names_exist(page: Path) -> None:
    assert not missing_attributes(page.read_text())


def test_an_attribute_that_does_not_exist_is_found() -> None:
    text = "`Algorithm.schedule`, `Algorithm.shedule`, `Correction.loss(step)`, `Step.at`, `Step.on`"
    assert missing_attributes(text) == ["Algorithm.shedule", "Step.on"]


def commands_in(text: str) -> list[list[str]]:
    """The kedge commands of a page, word by word: from blocks of code and from code inside sentences."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    blocks = [block.replace("\\\n", " ") for language, block in fences if language in ("", "sh")]
    lines = [line for block in blocks for line in block.splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return [shlex.split(line, comments=True) for line in [*lines, *spans] if re.match(r"kedge [a-z]", line)]


def unknown_options(words: Sequence[str]) -> list[str]:
    """The command of these words if kedge does not have it, or the options that the command does not have."""
    program = get_command(app)
    assert isinstance(program, click.Group)
    command = program.get_command(click.Context(program), words[1])
    if command is None:
        return [words[1]]
    known = {name for parameter in command.params for name in (*parameter.opts, "--help")}
    given = [word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)]
    return [option for option in given if option not in known]


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda path: path.name)
def test_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    wrong = {" ".join(words): unknown_options(words) for words in commands_in(page.read_text())}
    assert not {command: options for command, options in wrong.items() if options}


def values_of(words: Sequence[str], *options: str) -> list[str]:
    """The values of these options in a command."""
    return [value for option, value in pairwise(words) if option in options]


def refusal(words: Sequence[str]) -> str | None:
    """The error of a command's names: a kind of `kedge list`, or the methods and settings of an experiment.

    Only shipped experiments are checked, and commands that are not shortened by "…".
    """
    command, name = words[1], words[2] if len(words) > 2 else ""
    if command == "list" and re.match("[a-z]", name) and name not in KINDS:
        return f"no such kind: {name}"
    shipped = {path.stem for path in SHIPPED.glob("*.toml")}
    if command not in ("run", "cost") or name not in shipped or "…" in " ".join(words):
        return None
    settings = parsed_settings(values_of(words, "--set"))
    try:
        run_plan(override(read(name), settings), "".join(values_of(words, "--methods", "-m")), 1)
    except RequestError as error:
        return str(error)
    return None


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda path: path.name)
def test_commands_of_a_page_name_what_exists(page: Path) -> None:
    assert not [found for words in commands_in(page.read_text()) if (found := refusal(words))]


def test_a_command_with_a_wrong_name_is_found() -> None:
    assert refusal(["kedge", "list", "feddyn"]) == "no such kind: feddyn"
    assert refusal(["kedge", "list", "--json"]) is None
    assert refusal(["kedge", "list", "methods"]) is None
    assert "fedavf" in str(refusal(["kedge", "run", "quickstart", "-m", "fedavf"]))
    assert "training.epoch" in str(refusal(["kedge", "cost", "quickstart", "--set", "training.epoch=1"]))


def test_the_page_of_commands_has_every_command() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    rows = re.findall(r"^\| `kedge (\w+)", page, flags=re.MULTILINE)
    program = get_command(app)
    assert isinstance(program, click.Group)
    assert set(rows) == set(program.list_commands(click.Context(program)))


def test_a_command_that_does_not_exist_is_found() -> None:
    text = "```\nkedge run a \\\n  --sedes 3  # no --such\n```\n`kedge fly`, `kedge cost a --plot b.png`"
    found = commands_in(text)
    assert [unknown_options(words) for words in found] == [["--sedes"], ["fly"], []]


def test_the_figures_of_speed_in_the_readme_are_those_of_the_page_on_speed() -> None:
    readme_text, page = (ROOT / "README.md").read_text(), (ROOT / "docs/performance.md").read_text()
    table = readme_text.partition("## Speed")[2].partition("\n## ")[0]
    figures = re.findall(r"\d[\d,]*\d\d\d|\d+\.\d+", table)
    assert len(figures) >= 6
    assert not [figure for figure in figures if figure not in page]
    assert not [c for c in re.findall(r"`(kedge bench [^`]*)`", table) if c.split(" --")[0] not in page]


def missing_names(text: str) -> list[str]:
    """The names such as `kedge.train` in the Python of a page that kedge does not have."""
    missing = []
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            match node:
                case ast.Attribute(value=ast.Name(id="kedge"), attr=name) if not hasattr(kedge, name):
                    missing.append(f"kedge.{name}")
    return missing


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda path: path.name)
def test_python_of_a_page_parses_and_names_what_kedge_has(page: Path) -> None:
    assert not missing_names(page.read_text())


def test_a_name_that_kedge_does_not_have_is_found() -> None:
    assert missing_names("```python\nimport kedge\n\nkedge.trian(kedge.SGD())\n```\n") == ["kedge.trian"]


def test_the_experiments_of_the_page_on_speed_resolve() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    sweep, single = (
        tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    )
    assert len(cells(sweep | {"name": "six"})) == 6
    assert resolve(single | {"name": "precision"}).rounds == 300


def documented(page: str) -> dict[str, str]:
    """The first two columns of the tables on a page, for rows that begin with a name in code."""
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*?) \|", page, flags=re.MULTILINE))


def default_values() -> dict[str, str]:
    """The default of each key of an experiment, as the page on experiments writes it.

    Without the name, and without the tables that have pages of their own.
    """
    experiment = Experiment("defaults")
    values: dict[str, object] = {}
    for key in [one.name for one in fields(Experiment) if one.name not in ("name", "then", "measure")]:
        value = getattr(experiment, key)
        if is_dataclass(value):
            values |= {f"{key}.{inner.name}": getattr(value, inner.name) for inner in fields(value)}
        else:
            values[key] = as_text(value) if isinstance(value, dict) else value
    return {key: "–" if value is None else f"`{json.dumps(value)}`" for key, value in values.items()}


def test_the_page_on_experiments_has_every_key_with_its_default() -> None:
    tables, _, python_part = (ROOT / "docs/experiments.md").read_text().partition("## From Python")
    assert documented(tables) == default_values() | {"name": "the file's name"}
    renamed = {name: f"`{key}`" for name, key in KEYS.items() if key.rpartition(".")[2] != name}
    assert documented(python_part) == renamed


def test_a_wrong_default_on_a_page_is_found() -> None:
    assert documented("| `training.epochs` | `2` | passes |")["training.epochs"] == "`2`"
    assert default_values()["training.epochs"] == "`1`"
    assert default_values()["partition"] == '`"iid(clients=10)"`'
    assert default_values()["training.clip"] == "–"


def test_the_experiment_on_the_page_on_experiments_resolves() -> None:
    page = (ROOT / "docs/experiments.md").read_text()
    (table,) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    found = resolve(tomllib.loads(table) | {"name": "my"})
    assert (found.label, found.participation.per_round) == ("fedbug+feddyn", 5)
