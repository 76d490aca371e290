"""Print the table of the zoo: network × engine × precision; `python -m tests.zoo.table --device cuda`.

A cell is "right" with its relative error, or "refused" with the reason. Anything else is a defect, and the
exit code is 1. `--processes N` runs N networks at the same time, each in its own process.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.zoo.modules import ZOO, has_torchvision
from tests.zoo.trial import ENGINES, METHODS, PRECISIONS, Cell, run_cell, run_safely

ENGINES_ON = {"cpu": ("sequential", "stacked"), "cuda": ("sequential", "stacked", "captured")}
PRECISIONS_ON = {"cpu": ("fp64", "fp32", "bf16"), "cuda": PRECISIONS}
CAPTURED_OF_TORCHVISION = ("bf16",)  # other precisions are left out, because compiling takes minutes
PARENT_ONLY = ("--processes", "--only", "--limit")  # options that child processes do not get


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse and check the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help="networks, by commas: all if not given")
    parser.add_argument("--engines", default="", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--precisions", default="", help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--method", choices=[*METHODS], default="fedavg")
    parser.add_argument("--processes", type=int, default=1, help="networks tried at a time")
    parser.add_argument("--limit", type=float, default=420, help="seconds a process may take for a network")
    parser.add_argument("--list", action="store_true", help="print the networks and stop")
    found = parser.parse_args(words)
    for option, names, known in (
        ("--only", found.only, ZOO), ("--engines", found.engines, ENGINES),
        ("--precisions", found.precisions, PRECISIONS),
    ):  # fmt: skip
        wrong = [name for name in names.split(",") if name and name not in known]
        if wrong:
            parser.error(f"{option}: unknown {', '.join(wrong)}. Allowed: {', '.join(known)}")
    return found


def cells(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Network, engine and precision of every cell."""
    for name in options.only.split(",") if options.only else ZOO:
        for engine in options.engines.split(",") if options.engines else ENGINES_ON[options.device]:
            captured = engine == "captured" and ZOO[name].external
            usual = CAPTURED_OF_TORCHVISION if captured else PRECISIONS_ON[options.device]
            for precision in options.precisions.split(",") if options.precisions else usual:
                yield name, engine, precision


def run_all(options: argparse.Namespace) -> Counter[str]:
    """Run every cell and print its row; count the cells by state."""
    counts: Counter[str] = Counter()
    for name, engine, precision in cells(options):
        if ZOO[name].external and not has_torchvision():
            counts["skipped, because torchvision is not installed"] += 1
            continue
        start = time.perf_counter()
        found = run_safely(partial(run_cell, name, engine, precision, options.method, options.device))
        print_row(name, engine, precision, found, time.perf_counter() - start)
        counts[found.state] += 1
    return counts


def print_row(name: str, engine: str, precision: str, found: Cell, seconds: float) -> None:
    """Print one row and flush the output."""
    print(f"{name:22} {engine:11} {precision:5} {seconds:6.1f} s  {found}", flush=True)


def run_in_processes(options: argparse.Namespace, words: list[str]) -> Counter[str]:
    """The same with a process for each network. torchvision's networks start first: they take longest."""
    names = dict.fromkeys(name for name, _, _ in cells(options))
    run = partial(run_in_process, arguments=child_arguments(words), limit=options.limit)
    with ThreadPoolExecutor(options.processes) as pool:
        return sum(pool.map(run, sorted(names, key=lambda name: not ZOO[name].external)), Counter())


def run_in_process(name: str, arguments: list[str], limit: float) -> Counter[str]:
    """Run all cells of one network in a process of at most `limit` seconds, and print the rows."""
    command = [sys.executable, "-m", "tests.zoo.table", *arguments, "--only", name]
    failure = ""
    try:
        process = subprocess.run(command, capture_output=True, timeout=limit)
        out = process.stdout
        if process.returncode not in (0, 1):
            failure = process.stderr.decode().strip()[-300:] or f"exit code {process.returncode}"
    except subprocess.TimeoutExpired as error:
        out, failure = error.stdout or b"", f"not done after {limit:.0f} s"
    rows = [line for line in out.decode().splitlines() if line.startswith(name)]
    counts = Counter(row.split(" s  ", 1)[1].split()[0].rstrip(":") for row in rows)
    if failure:
        rows.append(f"{name:22} failed: {failure}")
        counts["failed"] += 1
    print("\n".join(rows or [f"{name:22} skipped: torchvision is not installed"]), flush=True)
    return counts


def child_arguments(words: list[str]) -> list[str]:
    """The arguments of a child process, without the options of `PARENT_ONLY`."""
    kept = []
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name not in PARENT_ONLY:
            kept.append(word)
        elif not value:
            next(rest, None)
    return kept


def main(words: list[str]) -> int:
    """Run the table. The exit code is 1 if a cell is neither right nor refused."""
    options = parse_arguments(words)
    if options.list:
        print("\n".join(dict.fromkeys(name for name, _, _ in cells(options))))
        return 0
    counts = run_in_processes(options, words) if options.processes > 1 else run_all(options)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["wrong"] + counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
