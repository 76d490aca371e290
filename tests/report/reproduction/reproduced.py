"""Tables with every kind of number: partly measured, diverged, not reached, bounds, names to escape."""

from functools import cache
from io import StringIO

from rich.console import Console
from tests.reproduce.tables import a_paper, a_record, an_entry, measured_with

from kedge.config.grid import cells
from kedge.report.reproduction.page import page
from kedge.report.reproduction.table import table_report
from kedge.reproduce.claims import judge_claims
from kedge.reproduce.measured import Measured, measured_table
from kedge.reproduce.paper import Claim, document_of, paper_of
from kedge.reproduce.records import Record

CLAIM = Claim("A|B is above <C*>.", rows=(("A|B", "<C*>"),), within=("x, IID", "x, α = 0.3"))


def mixed(scale: str = "full") -> Measured:
    """Three rows, four columns: of nine numbers seven are measured, most with three seeds."""
    entries = [
        an_entry("A|B", "x, IID", 80.0, std=0.5),
        an_entry("A|B", "x, α = 0.3", 70.0),
        an_entry("A|B", "rounds to 75 %", None, bound=">200", target=0.75),
        an_entry("A|B", "round 150", 65.0, at="150"),
        an_entry("<C*>", "x, IID", 60.0),
        an_entry("<C*>", "x, α = 0.3", 50.0),
        an_entry("<C*>", "rounds to 75 %", 120.0, target=0.75),
        an_entry("<C*>", "round 150", None, at="150"),
        an_entry("D", "x, IID", None),
    ]
    rounds = 300 if scale == "full" else 30

    def run(name: str, seed: int, value: float, diverged: bool = False) -> Record:
        curve = [(rounds // 2, value - 0.1), (rounds, value)]
        return a_record(f"of {name}", seed, curve, scale=scale, rounds=rounds, diverged=diverged)

    records = [run("A|B/x, IID", seed, 0.79 + 0.01 * seed) for seed in range(3)]
    records += [run("A|B/x, α = 0.3", seed, 0.7, diverged=seed == 1) for seed in range(3)]
    records += [run("A|B/rounds to 75 %", seed, 0.8 if seed else 0.5) for seed in range(3)]
    records += [run("A|B/round 150", seed, 0.76) for seed in range(3)]
    records += [run("<C*>/x, IID", 0, 0.625)]
    records += [run("<C*>/rounds to 75 %", seed, 0.5) for seed in range(3)]
    records += [run("D/x, IID", seed, 0.333) for seed in range(3)]
    return measured_with(a_paper(entries, (CLAIM,)), records, scale)


@cache
def shipped(name: str, seeds: int = 2) -> Measured:
    """A shipped table with invented runs of all its cells, near the printed numbers."""
    document = document_of(name)
    paper, every = paper_of(document), cells(document)
    names = {cell.name: f"of {cell.name}" for cell in every}
    records = [
        a_record(names[cell.name], seed, [], history={}, rounds=cell.experiment.rounds)
        for cell in every
        for seed in range(seeds)
    ]
    by_name = {record.key: dict[str, dict[int, float]]() for record in records}
    for number, entry in enumerate(paper.entries):
        (cell,) = [cell for cell in every if entry.selects(cell.settings)]
        at = int(entry.at) if entry.at.isdigit() else cell.experiment.rounds
        for seed in range(seeds):
            value = (entry.value or 50) / 100 + 0.003 * ((number * 7 + seed * 5) % 11 - 5) / 5
            curves = by_name[names[cell.name], seed]
            curves.setdefault(entry.metric, {}).setdefault(at, value if entry.target is None else 0.5)
    for record in records:
        curves = by_name[record.key]
        record.history.update(  # type: ignore[attr-defined]  # a dict, created above
            {metric: sorted(curve.items()) for metric, curve in curves.items()}
        )
    return measured_table(paper, every, records, "full", names)


def terminal(measured: Measured, width: int) -> str:
    """The report of a table, as text for a terminal of `width` characters."""
    console = Console(width=width, file=StringIO(), color_system=None)
    for part in table_report(measured, judge_claims(measured), width):
        console.print(part)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return str(text)


@cache
def shipped_terminal(name: str, width: int) -> str:
    """The report of a shipped table, as text for a terminal of `width` characters."""
    return terminal(shipped(name), width)


@cache
def shipped_page(name: str) -> str:
    """The page of a shipped table."""
    return page(shipped(name), judge_claims(shipped(name)))
