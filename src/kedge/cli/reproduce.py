"""kedge reproduce: the published tables, trained again, printed beside measured."""

import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import torch
import typer

from kedge.cli.options import Debug, Json, console, guarded, say, show
from kedge.cli.reproduce_progress import Board
from kedge.cli.runs import Device, EngineName, Pack, PrecisionName, Quiet, check_pack
from kedge.cli.signals import INTERRUPTED, stoppable
from kedge.config.assemble import device_of
from kedge.config.experiment import EngineChoice
from kedge.core.errors import RequestError, nearest
from kedge.report.reproduction.index import check_pages, write_pages
from kedge.report.reproduction.table import overview_table, rendered
from kedge.report.reproduction.values import as_dict, overview
from kedge.reproduce.claims import Judgement, judged
from kedge.reproduce.measured import Measured, measured_table
from kedge.reproduce.paper import names
from kedge.reproduce.plan import Run, Table, distinct, identities_of, runs_of, selected, table_of, to_train
from kedge.reproduce.records import Record, Sitting, new_file_name, read_records, write_record
from kedge.reproduce.shortened import SHAPES, Scale, write_made
from kedge.reproduce.work import Work, train
from kedge.running.progress import Abandoned, Interrupted
from kedge.version import __version__

ALL = "all"
SEEDS = {"full": 3, "small": 1, "smoke": 1}
FOLDERS = {"full": "reproduced", "small": "reproduced-small", "smoke": ""}
WORKERS = 8  # processes on a GPU, unless told otherwise


class Request(NamedTuple):
    """What the command was asked for."""

    tables: list[Table]
    scale: Scale
    seeds: range
    out: Path
    made: Path  # the folder of made data
    command: str


@guarded
def command(
    name: Annotated[
        str, typer.Argument(help="A published table, or all; without a name, the list of tables.")
    ] = "",
    scale: Annotated[
        str,
        typer.Option(help="full; small: a tenth of the rounds; smoke: two rounds on made data, to test."),
    ] = "full",
    filters: Annotated[
        list[str],
        typer.Option(
            "--cells",
            help="Only these cells: KEY=VALUE, * and ? allowed; KEY is a key of the grid, or row, column, "
            "block. May be repeated; all must hold.",
        ),
    ] = [],  # noqa: B006
    seeds: Annotated[
        int | None,
        typer.Option(help="How many seeds, from 0 on; by default 3, and 1 at another scale than full."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of results; by default reproduced, or reproduced-small."),
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Train nothing: show what is recorded.")] = False,
    device: Device = "",
    engine: EngineName = "",
    precision: PrecisionName = "",
    workers: Annotated[
        int, typer.Option(help="Processes that train side by side; 0: several on a GPU, one on a CPU.")
    ] = 0,
    pack: Pack = 0,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train the cells of a published table and show printed beside measured numbers.

    Every finished run is recorded in the folder of results and is not trained again. Records of several
    sittings and machines add up: copy their files into one folder.
    """
    began = time.monotonic()
    check(scale, seeds, workers, filters, name)
    check_pack(pack)
    chosen = {"engine.device": device, "engine.name": engine, "engine.precision": precision}
    settings = {key: value for key, value in chosen.items() if value}
    folder = out or Path(FOLDERS[scale] or ".")
    if not name:
        tell_list(folder, scale, as_json)
        return
    every = names() if name == ALL else [name]
    options = [("--scale", scale if scale != "full" else ""), *(("--cells", one) for one in filters)]
    options += [("--seeds", str(seeds or "")), ("--device", device), ("--engine", engine)]
    options += [("--precision", precision), ("--workers", str(workers or "")), ("--pack", str(pack or ""))]
    words = [word for option in options if option[1] for word in option]
    with folder_of_made_data() as made:
        request = Request(
            [selected(one, filters) if filters else one for one in (table_of(n, settings) for n in every)],
            scale,  # type: ignore[arg-type]
            range(seeds or SEEDS[scale]),
            folder,
            made,
            shlex.join(["kedge", "reproduce", name, *words]),
        )
        failed = 0
        if scale == "smoke":
            failed = smoke(request, workers, pack, quiet, as_json, debug, began)
        else:
            check_pages(folder)
            if not render:
                failed = run(request, workers, pack, quiet or as_json, debug, began)
            tell(request, every, quiet, as_json)
    if failed:
        raise typer.Exit(1)


@contextmanager
def folder_of_made_data() -> Iterator[Path]:
    """A temporary folder; ends the process if it abandons runs, whose threads cannot be stopped."""
    try:
        with TemporaryDirectory(prefix="kedge-made-", ignore_cleanup_errors=True) as made:
            yield Path(made)
    except Abandoned as error:
        say(str(error))
        sys.stdout.flush()
        os._exit(INTERRUPTED)


def check(scale: str, seeds: int | None, workers: int, filters: Sequence[str], name: str) -> None:
    """Raise if an option cannot be right."""
    if scale not in SEEDS:
        raise RequestError(f"--scale {scale!r}: need {', '.join(SEEDS)}.{nearest(scale, list(SEEDS))}")
    if seeds is not None and seeds < 1:
        raise RequestError(f"--seeds {seeds}: need at least 1.")
    if workers < 0:
        raise RequestError(f"--workers {workers}: need 0 (the default) or a positive number.")
    if filters and (not name or name == ALL):
        raise RequestError("--cells: the keys differ from table to table, so name one table.")


def run(request: Request, workers: int, pack: int, quiet: bool, debug: bool, began: float) -> int:
    """Train and record what is missing; returns how many runs failed."""
    wanted = [
        run for table in request.tables for run in runs_of(table, request.scale, request.seeds, request.made)
    ]
    todo = to_train(wanted, read_records(request.out))
    recorded = len({run.key for run in wanted}) - len(todo)
    if recorded and not quiet:
        say(f"{recorded} of {recorded + len(todo)} runs are recorded already.")
    return carried_out(todo, request, workers, pack, quiet, debug, began) if todo else 0


def carried_out(
    todo: Sequence[Run],
    request: Request,
    workers: int,
    pack: int,
    quiet: bool,
    debug: bool,
    began: float,
    keep: bool = True,
) -> int:
    """Train runs and record them (`keep`); returns how many failed."""
    sitting = new_sitting(request.command, todo)
    file = new_file_name(sitting)
    failures: dict[str, int] = {}
    count = workers_for(todo, workers)
    farewell = interrupt_message(request, keep)
    with (
        stoppable(lambda: farewell) as stop,
        Board(todo, quiet, own=count > 1) as board,
    ):
        shown = False if quiet else None
        work = Work(sitting, began, count, pack, shown, board.say, lambda: stop.asked, board.trained)
        try:
            with closing(train(todo, work)) as ends:
                for run, record, error, trace in ends:
                    if record and keep:
                        write_record(request.out / run.table / file, record)
                    board.finished(run, record, error)
                    if not record:
                        if error not in failures and debug:
                            say(trace)
                        failures[error] = failures.get(error, 0) + 1
        except Interrupted:
            raise KeyboardInterrupt(farewell) from None
        except KeyboardInterrupt as interrupt:
            raise type(interrupt)(farewell) from None
    for error, times in failures.items():
        say(f"error: {times} {'run' if times == 1 else 'runs'}: {error}")
    return sum(failures.values())


def interrupt_message(request: Request, keep: bool) -> str:
    """The last message of an interrupted command."""
    if not keep:
        return (
            f"interrupted; nothing is recorded at scale {request.scale}. Begin again with: {request.command}"
        )
    again = f"{request.command} {shlex.join(['--out', str(request.out)])}"
    return f"interrupted; finished runs are recorded. Go on with: {again}"


def workers_for(todo: Sequence[Run], workers: int) -> int:
    """The number of processes: several only where programs are compiled for a GPU."""
    engine: EngineChoice = todo[0].experiment.engine
    if workers or device_of(engine) == "cpu" or engine.name in ("sequential", "stacked"):
        return workers or 1
    kinds = len({(str(run.experiment.stages), str(run.experiment.model)) for run in todo})
    return min(WORKERS, kinds)


def new_sitting(command: str, todo: Sequence[Run]) -> Sitting:
    """This command on this machine."""
    on_gpu = device_of(todo[0].experiment.engine) == "cuda"
    hardware = torch.cuda.get_device_name() if on_gpu else platform.machine() + " CPU"
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Sitting(started, command, hardware, __version__, torch.__version__)


def smoke(
    request: Request, workers: int, pack: int, quiet: bool, as_json: bool, debug: bool, began: float
) -> int:
    """Train every method, schedule and model once on made data; the other cells were resolved."""
    for data in sorted({cell.experiment.data["name"] for table in request.tables for cell in table.cells}):
        if data in SHAPES:
            write_made(request.made, data)
    wanted = [run for table in request.tables for run in runs_of(table, "smoke", [0], request.made)]
    todo = distinct(wanted)
    failed = carried_out(todo, request, workers or 1, pack, quiet or as_json, debug, began, keep=False)
    seconds = time.monotonic() - began
    told = {
        "tables": [table.paper.name for table in request.tables],
        "trained": len(todo) - failed,
        "failed": failed,
        "resolved": len(wanted),
        "seconds": round(seconds, 1),
    }
    if as_json:
        show(told)
    elif not quiet:
        say(
            f"{len(todo) - failed} of {len(todo)} different runs of {len(request.tables)} tables trained two "
            f"rounds on made data, and all {len(wanted)} cells resolve ({seconds:.0f} s)."
        )
    return failed


def tell(request: Request, every: Sequence[str], quiet: bool, as_json: bool) -> None:
    """The tables with what is recorded, in the terminal and as pages in the folder of results."""
    records = read_records(request.out)
    known = {name: measured(table_of(name, {}), records, request.scale, request.made) for name in names()}
    if records:
        write_pages(request.out, known.values())
    tables = [known[name] for name in every]
    if as_json:
        found: list[dict[str, Any]] = [as_dict(one, verdicts) for one, verdicts in tables]
        show(found[0] if len(every) == 1 else {"tables": found})
    elif not quiet:
        out = console()
        for one, verdicts in tables:
            for part in rendered(one, verdicts, out.width):
                out.print(part)
            out.print()
        out.print(f"{request.out}", highlight=False, soft_wrap=True)


def measured(
    table: Table, records: Sequence[Record], scale: Scale, made: Path
) -> tuple[Measured, list[Judgement]]:
    """A table with the numbers of all records, and its verdicts."""
    found = measured_table(table.paper, table.cells, records, scale, identities_of(table, scale, made))
    return found, judged(found)


def tell_list(folder: Path, scale: str, as_json: bool) -> None:
    """The tables that can be reproduced, and what is recorded of them in the folder of results."""
    records = read_records(folder) if folder.is_dir() else []
    shown: Scale = "small" if scale == "small" else "full"
    rows = overview(measured(table_of(name, {}), records, shown, Path()) for name in names())
    if as_json:
        show(rows)
    else:
        console().print(overview_table(rows))
