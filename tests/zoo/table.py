"""Print the table of the zoo: network × engine × precision; `python -m tests.zoo.table --device cuda`.

A cell is "right" with its relative error, or "refused" with the reason; anything else is a defect, and the
exit code is 1. `--processes N` tries N networks at a time, each in a process of its own.
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
from tests.zoo.trial import ENGINES, METHODS, PRECISIONS, Cell, cell, tried

ENGINES_ON = {"cpu": ("sequential", "stacked"), "cuda": ("sequential", "stacked", "captured")}
PRECISIONS_ON = {"cpu": ("fp64", "fp32", "bf16"), "cuda": PRECISIONS}
DEEP = ("bf16",)  # precisions in which torchvision's networks are captured: they compile for minutes
HELD_BACK = ("--processes", "--only", "--limit")  # what a parent does not hand on


def asked(words: list[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
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
    for name, given, known in (
        ("--only", found.only, ZOO), ("--engines", found.engines, ENGINES),
        ("--precisions", found.precisions, PRECISIONS),
    ):  # fmt: skip
        wrong = [one for one in given.split(",") if one and one not in known]
        if wrong:
            parser.error(f"{name}: there is no {', '.join(wrong)}; there are {', '.join(known)}")
    return found


def cells(wanted: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Network, engine and precision of every cell."""
    for name in wanted.only.split(",") if wanted.only else ZOO:
        for engine in wanted.engines.split(",") if wanted.engines else ENGINES_ON[wanted.device]:
            usual = DEEP if engine == "captured" and ZOO[name].external else PRECISIONS_ON[wanted.device]
            for precision in wanted.precisions.split(",") if wanted.precisions else usual:
                yield name, engine, precision


def try_all(wanted: argparse.Namespace) -> Counter[str]:
    """Try every cell and print its row; how many have ended how."""
    counts: Counter[str] = Counter()
    for name, engine, precision in cells(wanted):
        if ZOO[name].external and not has_torchvision():
            counts["skipped, for torchvision is not installed"] += 1
            continue
        start = time.perf_counter()
        found = tried(partial(cell, name, engine, precision, wanted.method, wanted.device))
        show(name, engine, precision, found, time.perf_counter() - start)
        counts[found.state] += 1
    return counts


def show(name: str, engine: str, precision: str, found: Cell, seconds: float) -> None:
    """Print one row at once."""
    print(f"{name:22} {engine:11} {precision:5} {seconds:6.1f} s  {found}", flush=True)


def try_in_processes(wanted: argparse.Namespace, words: list[str]) -> Counter[str]:
    """The same with a process for every network; torchvision's, which take longest, come first."""
    names = dict.fromkeys(name for name, _, _ in cells(wanted))
    handed = handed_on(words)

    def one(name: str) -> Counter[str]:
        command = [sys.executable, "-m", "tests.zoo.table", *handed, "--only", name]
        why = ""
        try:
            ran = subprocess.run(command, capture_output=True, timeout=wanted.limit)
            out = ran.stdout
            if ran.returncode not in (0, 1):
                why = ran.stderr.decode().strip()[-300:] or f"exit code {ran.returncode}"
        except subprocess.TimeoutExpired as error:
            out, why = error.stdout or b"", f"not done after {wanted.limit:.0f} s"
        rows = [line for line in out.decode().splitlines() if line.startswith(name)]
        counts = Counter(row.split(" s  ", 1)[1].split()[0].rstrip(":") for row in rows)
        if why:
            rows.append(f"{name:22} failed: {why}")
            counts["failed"] += 1
        print("\n".join(rows or [f"{name:22} skipped: torchvision is not installed"]), flush=True)
        return counts

    with ThreadPoolExecutor(wanted.processes) as pool:
        return sum(pool.map(one, sorted(names, key=lambda name: not ZOO[name].external)), Counter())


def handed_on(words: list[str]) -> list[str]:
    """The arguments of a process for one network."""
    kept = []
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name not in HELD_BACK:
            kept.append(word)
        elif not value:
            next(rest, None)
    return kept


def main(words: list[str]) -> int:
    """1 if a cell is neither right nor refused."""
    wanted = asked(words)
    if wanted.list:
        print("\n".join(dict.fromkeys(name for name, _, _ in cells(wanted))))
        return 0
    counts = try_in_processes(wanted, words) if wanted.processes > 1 else try_all(wanted)
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["wrong"] + counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
