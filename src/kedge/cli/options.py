"""Options that several commands have, and checks of their values."""

from pathlib import Path
from typing import Annotated

import typer

from kedge.cli import completion
from kedge.core.errors import RequestError
from kedge.report.plots.png import require_matplotlib

Experiment = Annotated[
    str,
    typer.Argument(
        help="A TOML file, or the name of a shipped experiment.", autocompletion=completion.experiments
    ),
]
RunFolders = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of runs, or folders that contain such folders.", autocompletion=completion.run_folders
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        "-m",
        help="Methods to compare, one run each: 'fedavg, feddyn(alpha=0.1), fedbug+feddyn'. They replace "
        "the experiment's method, schedule and later stages.",
        autocompletion=completion.method_expressions,
    ),
]
ModelName = Annotated[
    str,
    typer.Option("--model", help="The network: a name with arguments, or your own as my_file.py:factory."),
]
Sets = Annotated[
    list[str],
    typer.Option("--set", help="Set any key of the config, as in training.epochs=5. Repeatable."),
]
Seed = Annotated[int | None, typer.Option(help="The random seed.")]
Seeds = Annotated[int, typer.Option(help="Number of seeds, counted up from --seed.")]
Device = Annotated[
    str,
    typer.Option(help="auto, cpu or cuda.", autocompletion=completion.one_of("auto", "cpu", "cuda")),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        help="auto, sequential, stacked, captured (CUDA) or ray (a cluster).",
        autocompletion=completion.one_of("auto", "sequential", "stacked", "captured", "ray"),
    ),
]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        help="With --engine ray: the address of a running cluster. Default: a cluster on this machine. With "
        "--resume it may be another one than before.",
    ),
]
PrecisionName = Annotated[
    str,
    typer.Option(
        "--precision",
        help="fp64, fp32, tf32 (CUDA) or bf16.",
        autocompletion=completion.one_of("fp64", "fp32", "tf32", "bf16"),
    ),
]
ResumeRun = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Resume the run, or the runs, in this folder.",
        autocompletion=completion.run_folders,
    ),
]
ResumeSweep = Annotated[
    Path | None,
    typer.Option("--resume", help="Resume the sweep in this folder.", autocompletion=completion.run_folders),
]
Out = Annotated[Path | None, typer.Option(help="The folder to write. Default: runs/NAME.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Replace the folder if it exists and contains only files that kedge wrote."),
]
Target = Annotated[float | None, typer.Option(help="Show the rounds to this accuracy, a share such as 0.9.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no table.")]
Pack = Annotated[
    int,
    typer.Option(
        help="Runs that train at the same time, at most. 1: one after another. 0: as many as fit into "
        "memory and make training faster."
    ),
]
AcceptChanged = Annotated[
    bool,
    typer.Option(
        "--accept-changed-code", help="With --resume: execute your own files even if they have changed."
    ),
]
UseStored = Annotated[
    bool,
    typer.Option(
        "--use-stored-code",
        help="With --resume: execute the copies of your own files in the run's folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document, nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")]


def check_target(target: float | None) -> None:
    """Raise if a target accuracy is not between 0 and 1."""
    if target is not None and not 0 < target <= 1:
        raise RequestError(f"--target {target}: need a share between 0 and 1; for 90 % write 0.9.")


def check_pack(pack: int) -> None:
    """Raise if the number of runs that train at the same time is negative."""
    if pack < 0:
        raise RequestError(
            f"--pack {pack}: need 0 (as many as make training faster), 1 (one after another) or more."
        )


def check_file(option: str, path: Path, suffix: str) -> None:
    """Raise if a file with this suffix cannot be written to `path`."""
    if path.suffix != suffix or path.is_dir() or not path.parent.is_dir():
        raise RequestError(f"{option} {path}: need the name of a {suffix} file in an existing folder.")


def check_folder(option: str, path: Path, remedy: str) -> None:
    """Raise if `path`, or one of its parent folders, is a file."""
    existing = next((folder for folder in (path, *path.parents) if folder.exists()), None)
    if existing and not existing.is_dir():
        raise RequestError(f"{option} {path}: {existing} is a file; {remedy}.")


def check_png(option: str, path: Path) -> None:
    """Raise if no PNG can be drawn or written to `path`."""
    check_file(option, path, ".png")
    require_matplotlib("The tables need no matplotlib.")
