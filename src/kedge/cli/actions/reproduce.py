"""Train the cells of published tables, record the runs, and show published beside measured numbers."""

import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from kedge.cli.actions.reproduce_machine import new_sitting, worker_count
from kedge.cli.actions.reproduce_progress import Board
from kedge.cli.output import console, print_json, print_message
from kedge.cli.signals import INTERRUPTED, stoppable
from kedge.core.errors import RequestError, nearest
from kedge.report.reproduction.index import check_pages, write_pages
from kedge.report.reproduction.table import overview_table, table_report
from kedge.report.reproduction.values import as_dict, overview
from kedge.reproduce.claims import Judgment, judge_claims
from kedge.reproduce.measured import Measured, measured_table
from kedge.reproduce.paper import names
from kedge.reproduce.plan import (
    Run,
    Table,
    identities_of,
    missing_runs,
    one_run_per_program,
    runs_of,
    select_cells,
    table_of,
)
from kedge.reproduce.records import Record, new_file_name, read_records, write_record
from kedge.reproduce.scales import SHAPES, Scale, write_synthetic
from kedge.reproduce.work import TrainOptions, train
from kedge.running.open_engine import RAY
from kedge.running.progress import Abandoned, Interrupted

ALL = "all"
SEEDS = {"full": 3, "small": 1, "smoke": 1}
FOLDERS = {"full": "reproduced", "small": "reproduced-small", "smoke": ""}
ENGINE_KEYS = {  # options that set a key of the table [engine]
    "engine.device": "device",
    "engine.name": "engine",
    "engine.precision": "precision",
    "engine.address": "address",
}


class Request(NamedTuple):
    """The tables to train or show."""

    names: list[str]
    tables: list[Table]  # with the chosen cells
    scale: Scale
    seeds: range
    out: Path
    synthetic: Path  # the folder of synthetic data
    command: str  # the command line, for the message after an interruption


class CommandOptions(NamedTuple):
    """Options of the training; `start` is the time at which the command started.

    `folder` is the place of temporary folders if the machines of a cluster must see them.
    """

    workers: int
    pack: int
    quiet: bool
    debug: bool
    start: float
    folder: Path | None = None


def default_folder(scale: str) -> Path:
    """The folder of results without --out."""
    return Path(FOLDERS[scale] or ".")


def request(name: str, options: Mapping[str, Any], out: Path, synthetic: Path) -> Request:
    """The tables with this name and these options; `options` maps names of options to their values."""
    table_names = names() if name == ALL else [name]
    settings = {key: options[option] for key, option in ENGINE_KEYS.items() if options[option]}
    if options["engine"] == RAY:
        settings["engine.workers"] = options["workers"]
    filters, scale = options["cells"], options["scale"] or "full"
    tables = [table_of(table_name, settings) for table_name in table_names]
    words = ["kedge", "reproduce", name]
    for option, value in options.items():
        for single in value if isinstance(value, list) else [value] if value else []:
            words += [f"--{option}", str(single)]
    return Request(
        table_names,
        [select_cells(table, filters) for table in tables] if filters else tables,
        cast(Scale, scale),  # check_options allows no other
        range(options["seeds"] or SEEDS[scale]),
        out,
        synthetic,
        shlex.join(words),
    )


@contextmanager
def temporary_data_folder(place: Path | None) -> Iterator[Path]:
    """Create a folder for synthetic data in `place` (None: the system's place for temporary files).

    End the process if it abandons runs: their threads cannot stop.
    """
    if place:
        place.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(
            prefix="kedge-synthetic-", dir=place, ignore_cleanup_errors=True
        ) as synthetic:
            yield Path(synthetic)
    except Abandoned as error:
        print_message(str(error))
        sys.stdout.flush()
        os._exit(INTERRUPTED)


def check_options(scale: str, seeds: int | None, workers: int, filters: Sequence[str], name: str) -> None:
    """Raise if an option is invalid."""
    if scale not in SEEDS:
        raise RequestError(
            f"--scale {scale}: no such scale.{nearest(scale, list(SEEDS))} Allowed: {', '.join(SEEDS)}."
        )
    if seeds is not None and seeds < 1:
        raise RequestError(f"--seeds {seeds}: need at least 1.")
    if workers < 0:
        raise RequestError(f"--workers {workers}: need 0 (the default) or a positive number.")
    if filters and (not name or name == ALL):
        raise RequestError("--cells: the keys differ from table to table, so name one table.")


def train_missing(request: Request, options: CommandOptions) -> int:
    """Train and record the runs without a record; return the number of failures."""
    check_pages(request.out)
    runs = [
        run
        for table in request.tables
        for run in runs_of(table, request.scale, request.seeds, request.synthetic)
    ]
    missing = missing_runs(runs, read_records(request.out))
    recorded = len({run.key for run in runs}) - len(missing)
    if recorded and not options.quiet:
        print_message(f"{recorded} of {recorded + len(missing)} runs are recorded already.")
    return train_runs(missing, request, options) if missing else 0


def train_runs(runs: Sequence[Run], request: Request, options: CommandOptions, keep: bool = True) -> int:
    """Train runs and, with `keep`, record them; return the number of failures."""
    sitting = new_sitting(request.command, runs)
    file = new_file_name(sitting)
    failures: dict[str, int] = {}
    on_cluster = runs[0].experiment.engine.name == RAY
    count = worker_count(runs, options.workers)
    farewell = interrupt_message(request, keep)
    with (
        stoppable(lambda: farewell) as stop,
        Board(runs, options.quiet, show_rounds=count > 1) as board,
    ):
        shown = False if options.quiet else board.console.is_terminal if on_cluster else None
        training = TrainOptions(
            sitting,
            options.start,
            count,
            options.pack,
            shown,
            board.say,
            lambda: stop.requested,
            board.set_rounds,
            options.folder,
        )
        try:
            with closing(train(runs, training)) as ends:
                for run, record, error, trace in ends:
                    if record and keep:
                        write_record(request.out / run.table / file, record)
                    board.count_run(run, record, error)
                    if not record:
                        if error not in failures and options.debug:
                            print_message(trace)
                        failures[error] = failures.get(error, 0) + 1
        except Interrupted:
            raise KeyboardInterrupt(farewell) from None
        except KeyboardInterrupt as interrupt:
            raise type(interrupt)(farewell) from None
    for error, times in failures.items():
        print_message(f"error: {times} {'run' if times == 1 else 'runs'}: {error}")
    return sum(failures.values())


def interrupt_message(request: Request, keep: bool) -> str:
    """The last message of an interrupted command."""
    if not keep:
        return (
            f"interrupted; nothing is recorded at scale {request.scale}. Start again with: {request.command}"
        )
    again = f"{request.command} {shlex.join(['--out', str(request.out)])}"
    return f"interrupted; finished runs are recorded. Resume with: {again}"


def train_smoke(request: Request, options: CommandOptions, quiet: bool, as_json: bool) -> int:
    """Train each method, schedule and model once on synthetic data; return the number of failures.

    The other cells are resolved, but not trained.
    """
    for data in sorted({cell.experiment.data["name"] for table in request.tables for cell in table.cells}):
        if data in SHAPES:
            write_synthetic(request.synthetic, data)
    resolved = [run for table in request.tables for run in runs_of(table, "smoke", [0], request.synthetic)]
    runs = one_run_per_program(resolved)
    failed = train_runs(runs, request, options._replace(workers=options.workers or 1), keep=False)
    seconds = time.monotonic() - options.start
    if as_json:
        print_json(
            {
                "tables": [table.paper.name for table in request.tables],
                "trained": len(runs) - failed,
                "failed": failed,
                "resolved": len(resolved),
                "seconds": round(seconds, 1),
            }
        )
    elif not quiet:
        print_message(
            f"{len(runs) - failed} of {len(runs)} different runs of {len(request.tables)} tables trained two "
            f"rounds on synthetic data, and all {len(resolved)} cells resolve ({seconds:.0f} s)."
        )
    return failed


def print_tables(request: Request, quiet: bool, as_json: bool) -> None:
    """Write the pages of all records, and print the tables of the request."""
    records = read_records(request.out)
    known = {
        name: measured(table_of(name, {}), records, request.scale, request.synthetic) for name in names()
    }
    if records:
        write_pages(request.out, known.values())
    tables = [known[name] for name in request.names]
    if as_json:
        documents: list[dict[str, Any]] = [as_dict(table, verdicts) for table, verdicts in tables]
        print_json(documents[0] if len(documents) == 1 else {"tables": documents})
    elif not quiet:
        out = console()
        for table, verdicts in tables:
            for part in table_report(table, verdicts, out.width):
                out.print(part)
            out.print()
        out.print(f"{request.out}", highlight=False, soft_wrap=True)


def measured(
    table: Table, records: Sequence[Record], scale: Scale, synthetic: Path
) -> tuple[Measured, list[Judgment]]:
    """A table with the numbers of all records, and its verdicts."""
    identities = identities_of(table, scale, synthetic)
    result = measured_table(table.paper, table.cells, records, scale, identities)
    return result, judge_claims(result)


def print_overview(folder: Path, scale: str, as_json: bool) -> None:
    """Print the tables that can be reproduced, with the records in the folder of results."""
    records = read_records(folder) if folder.is_dir() else []
    shown: Scale = "small" if scale == "small" else "full"
    rows = overview(measured(table_of(name, {}), records, shown, Path()) for name in names())
    if as_json:
        print_json(rows)
    else:
        console().print(overview_table(rows))
