"""The table of methods in README.md, made from the texts of the methods and schedules.

    python -m docs.readme [--check]

`make docs` runs it. It replaces the lines between `<!-- methods -->` and `<!-- end of methods -->`.
"""

import argparse
import re
import sys
from pathlib import Path

from docs.methods.generate import entry, plain, table

from kedge.algorithms import METHOD_REGISTRY, SCHEDULE_REGISTRY
from kedge.report.method_texts import text_of

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(?<=<!-- methods -->\n).*?(?=<!-- end of methods -->)", flags=re.DOTALL)


def first_sentence(text: str) -> str:
    """The first sentence of a text, without its period."""
    found = re.match(r".*?(?=\.(?:\s|$))", plain(text))
    return found[0] if found else plain(text)


def methods_table() -> str:
    """One row for each method, then one for each schedule that freezes a part of the model."""
    rows = []
    for names, suffix in ((METHOD_REGISTRY, ""), (SCHEDULE_REGISTRY, "+…")):
        for name in names:
            text = text_of(name)
            _, idea, paper, _ = entry(name, text)
            if name != "all":
                link = f"[`{name}{suffix}`](docs/methods/{name}.md)"
                rows.append((link, idea, paper, first_sentence(text.use)))
    return table(("name", "idea", "paper", "when to use it"), rows)


def readme(text: str) -> str:
    """The text of README.md with the current table of methods."""
    made, blocks = BLOCK.subn(lambda _: f"{methods_table()}\n", text)
    if blocks != 1:
        raise SystemExit("README.md: need the lines <!-- methods --> and <!-- end of methods --> once each.")
    return made


def main() -> int:
    """Write README.md if its table is out of date, or only print its name."""
    parser = argparse.ArgumentParser(description="Write the table of methods in README.md.")
    parser.add_argument("--check", action="store_true", help="only name the file; exit 1 if it is old")
    check, text = parser.parse_args().check, README.read_text()
    made = readme(text)
    if made == text:
        return 0
    print(README.name)
    if not check:
        README.write_text(made)
    return int(check)


if __name__ == "__main__":
    sys.exit(main())
