"""Print the table of the zoo: network × engine × precision; `python -m tests.zoo.table --device cuda`.

A cell is "right" with its relative error, or "refused" with the reason; anything else is a defect, and the
exit code is 1.
"""

import argparse
import sys
import time
from collections import Counter

from tests.zoo.modules import ZOO, has_torchvision
from tests.zoo.trial import ENGINES, METHODS, PRECISIONS, Cell, cell, tried

ON = {
    "cpu": {"engines": ("sequential", "stacked"), "precisions": ("fp64", "fp32", "bf16")},
    "cuda": {"engines": ("sequential", "stacked", "captured"), "precisions": PRECISIONS},
}


def asked() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", default="", help="networks, by commas: all if not given")
    parser.add_argument("--engines", default="", help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--precisions", default="", help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--method", choices=[*METHODS], default="fedavg")
    parser.add_argument("--share", default="0/1", help="I/N: this process does every N-th network from I on")
    parser.add_argument("--list", action="store_true", help="print the networks and stop")
    found = parser.parse_args()
    for name, given, known in (
        ("--only", found.only, ZOO), ("--engines", found.engines, ENGINES),
        ("--precisions", found.precisions, PRECISIONS),
    ):  # fmt: skip
        wrong = [one for one in given.split(",") if one and one not in known]
        if wrong:
            parser.error(f"{name}: there is no {', '.join(wrong)}; there are {', '.join(known)}")
    return found


def names(only: str, share: str) -> list[str]:
    """The networks to try."""
    wanted = [name for name in ZOO if not only or name in only.split(",")]
    first, by = (int(part) for part in share.split("/"))
    return wanted[first::by]


def shown(row: tuple[str, str, str], found: Cell, seconds: float) -> None:
    """Print one row at once."""
    name, engine, precision = row
    print(f"{name:22} {engine:11} {precision:5} {seconds:6.1f} s  {found}", flush=True)


def main() -> int:
    """Try every cell; how many were neither right nor refused."""
    wanted = asked()
    on = ON[wanted.device]
    engines = wanted.engines.split(",") if wanted.engines else on["engines"]
    precisions = wanted.precisions.split(",") if wanted.precisions else on["precisions"]
    if wanted.list:
        print("\n".join(names(wanted.only, wanted.share)))
        return 0
    counts: Counter[str] = Counter()
    for name in names(wanted.only, wanted.share):
        if ZOO[name].external and not has_torchvision():
            print(f"{name:22} skipped: torchvision is not installed", flush=True)
            continue
        for engine in engines:
            for precision in precisions:
                start = time.perf_counter()
                found = tried(
                    lambda row=(name, engine, precision): cell(*row, wanted.method, wanted.device)  # type: ignore[misc]
                )
                shown((name, engine, precision), found, time.perf_counter() - start)
                counts[found.state] += 1
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["wrong"] + counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
