"""Shell completion of names: experiments, methods, folders of runs. It reads files and loads no PyTorch."""

from collections.abc import Callable, Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
EXPERIMENTS = PACKAGE / "experiments"
TEXTS = PACKAGE / "algorithms" / "texts"  # one file for each method and schedule
SCHEDULES = ("all", "anti", "fedbug", "fix-last", "fix-last-two", "top-down", "vanilla")
MARKER = "kedge.json"  # in each folder that kedge made
DEPTH = 3  # levels of folders below runs/ that are searched

Completion = Callable[[str], list[str]]


def one_of(*names: str) -> Completion:
    """Completion of an option with fixed values."""

    def complete(incomplete: str) -> list[str]:
        return starting_with(incomplete, names)

    return complete


def experiments(incomplete: str) -> list[str]:
    """Names of shipped experiments. Without a match, the shell completes files."""
    return starting_with(incomplete, [path.stem for path in EXPERIMENTS.glob("*.toml")])


def published_tables(incomplete: str) -> list[str]:
    """Names of the tables that `kedge reproduce` trains."""
    names = [path.stem for path in (EXPERIMENTS / "published").glob("*.csv")]
    return starting_with(incomplete, [*names, "all"])


def methods(incomplete: str) -> list[str]:
    """Names of methods."""
    names = [path.stem for path in TEXTS.glob("*.toml")]
    return starting_with(incomplete, [name for name in names if name not in SCHEDULES])


def method_expressions(incomplete: str) -> list[str]:
    """Completions of the last name in a list of expressions, such as 'fedavg,fedbug+feddyn'."""
    end = max(incomplete.rfind(separator) for separator in ", +>") + 1
    before, last = incomplete[:end], incomplete[end:]
    schedules = [] if before.endswith("+") else [f"{name}+" for name in SCHEDULES]
    return [before + name for name in methods(last) + starting_with(last, schedules)]


def run_folders(incomplete: str) -> list[str]:
    """Folders that kedge made, below runs/ or below the folder typed so far."""
    typed, _, _ = incomplete.rpartition("/")
    top = Path(typed or "runs")
    patterns = ["/".join("*" * depth) for depth in range(1, DEPTH + 1)]
    found = [path.parent for pattern in patterns for path in top.glob(f"{pattern}/{MARKER}")]
    return starting_with(incomplete, map(str, found))


def starting_with(incomplete: str, names: Iterable[str]) -> list[str]:
    """The names that begin with `incomplete`, sorted."""
    return sorted(name for name in names if name.startswith(incomplete))
