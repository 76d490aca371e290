"""The audit's table as one page that needs no network and no other file."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kedge.report.tables.audit import short

Row = Mapping[str, Any]

MEANINGS = {
    "oracle": "numbers worked out beforehand from the papers' equations, step by step and round by round",
    "reduction": "settings in which the method must be another one, or plain SGD by torch.optim",
    "gradient": "the gradient a client really uses, against autograd of the objective written out and "
    "against finite differences of its loss terms",
    "quadratic": "where the method comes to rest on quadratics, against the closed form",
    "engines": "one client after another and all at once: the same numbers",
    "frozen": "leaves that do not train keep every bit",
    "resume": "a run that was stopped and resumed ends as the run that went through, bit for bit",
    "value": "the method pickles, compares, hashes and prints its hyper-parameters",
}

STYLE = """
:root { --ink: #1c2128; --dim: #667080; --paper: #fff; --line: #dfe3e8; --head: #f4f6f8;
  --good: #116329; --good-back: #e6f5ea; --bad: #a40e26; --bad-back: #ffe5e8; --note: #fff6d6; }
@media (prefers-color-scheme: dark) { :root { --ink: #dde3ea; --dim: #93a0b0; --paper: #14181d;
  --line: #2c333c; --head: #1c2229; --good: #7ddc95; --good-back: #16301f; --bad: #ff9aa6;
  --bad-back: #46161d; --note: #3a3212; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; }
main { max-width: 84rem; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; }
p { margin: .3rem 0; }
.dim { color: var(--dim); }
.verdict { font-size: 1.1rem; font-weight: 600; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.note { background: var(--note); padding: .5rem .8rem; border-radius: 6px; }
.scroll { overflow-x: auto; margin-top: 1.2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .4rem .55rem; }
thead th { background: var(--head); border-bottom: 1px solid var(--line); font-size: .85rem; }
.audit > tbody > tr:first-child > * { border-top: 1px solid var(--line); }
.method { white-space: nowrap; font-weight: 600; }
.method.good { color: inherit; }
.formula { min-width: 17rem; font-size: .85rem; color: var(--dim); }
.cell { white-space: nowrap; font-variant-numeric: tabular-nums; font-size: .85rem; }
.audit > tbody > tr > .cell { border-left: 2px solid var(--paper); }
.cell.good { background: var(--good-back); }
.cell.bad { background: var(--bad-back); font-weight: 600; }
.cell small { opacity: .75; font-size: .75rem; }
td.checks { padding: 0 .55rem .45rem; font-size: .82rem; }
summary { cursor: pointer; color: var(--dim); }
.checks table { margin: .4rem 0 .6rem; background: var(--head); border-radius: 6px; }
.checks td { padding: .2rem .6rem; }
.checks td:nth-child(3) { white-space: nowrap; }
.checks td.cell { font-size: inherit; }
dt { font-weight: 600; float: left; clear: left; width: 6rem; }
dd { margin: 0 0 0 6rem; }
"""


def page(
    methods: Sequence[Row], rows: Sequence[Row], notes: Sequence[str], versions: Mapping[str, str]
) -> str:
    """The page: verdict, table, and under every method its checks to unfold."""
    failed = sum(not row["passed"] for row in rows)
    kinds = list(methods[0]["kinds"])
    heads = "".join(f'<th title="{text(MEANINGS[kind])}">{kind}</th>' for kind in kinds)
    bodies = "\n".join(
        body(method, [r for r in rows if r["method"] == method["method"]]) for method in methods
    )
    legend = "".join(f"<dt>{kind}</dt><dd>{text(MEANINGS[kind])}</dd>" for kind in kinds)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>kedge audit</title>
<style>{STYLE}</style>
</head>
<body><main>
<h1>kedge audit</h1>
<p class="verdict {tone(failed)}">{len(rows) - failed} of {len(rows)} checks pass</p>
<p class="dim">{text(" · ".join(f"{name} {version}" for name, version in versions.items()))}</p>
<p class="dim">Every method against answers obtained another way. A cell counts its checks and shows the
largest error; – where there is no check of the kind. Unfold a method to see every check.</p>
<details><summary>What the columns mean</summary><dl>{legend}</dl></details>
{"".join(f'<p class="note">{text(note)}</p>' for note in notes)}
<div class="scroll"><table class="audit">
<thead><tr><th>method</th><th>formula</th>{heads}</tr></thead>
{bodies}
</table></div>
</main></body>
</html>
"""


def body(method: Row, rows: Sequence[Row]) -> str:
    """A method's row, and its checks to unfold; unfolded where one fails."""
    cells = "".join(
        cell(found, [r for r in rows if r["kind"] == kind]) for kind, found in method["kinds"].items()
    )
    lines = "".join(line(row) for row in rows)
    unfolded = "" if method["passed"] else ' open="open"'
    count = f"{len(rows)} check{'s' if len(rows) > 1 else ''}"
    name = f'<th class="method {tone(not method["passed"])}" scope="row">{text(method["method"])}</th>'
    return (
        f'<tbody><tr>{name}<td class="formula">{text(method["formula"]) or "–"}</td>{cells}</tr>\n'
        f'<tr><td class="checks" colspan="{len(method["kinds"]) + 2}"><details{unfolded}>'
        f"<summary>{count}</summary><table>{lines}</table></details></td></tr></tbody>"
    )


def cell(found: Row | None, rows: Sequence[Row]) -> str:
    """One kind of check of one method; the names of the checks show over it."""
    if found is None:
        return '<td class="cell dim">–</td>'
    names = "\n".join(f"{'✓' if row['passed'] else '✗'} {row['check']}" for row in rows)
    failed, error = found["failed"], found["error"]
    count = f"{failed} of {found['checks']} ✗" if failed else f"{found['checks']} ✓"
    worst = f" <small>{short(error)}</small>" if error is not None else ""
    return f'<td class="cell {tone(failed)}" title="{text(names)}">{count}{worst}</td>'


def line(row: Row) -> str:
    """One check."""
    error = "" if row["error"] is None else f"{row['error']:.1e}"
    verdict = "✓" if row["passed"] else "✗"
    return (
        f'<tr><td class="{tone(not row["passed"])}">{verdict}</td><td>{text(row["kind"])}</td>'
        f'<td>{text(row["check"])}</td><td class="cell">{error}</td>'
        f'<td class="dim">{text(row["detail"])}</td></tr>'
    )


def tone(failed: int) -> str:
    """The class that colors it."""
    return "bad" if failed else "good"


def text(plain: str) -> str:
    """Text that stands for itself."""
    return escape(str(plain)).replace("\n", "&#10;")
