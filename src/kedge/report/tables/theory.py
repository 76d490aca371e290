"""The result of `kedge theory` as a table for a terminal, its conclusions, and the meaning of the columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from kedge.report.numbers import plural
from kedge.report.tables.layout import plain_table

OUTPUTS = {"multiplicative": "f = n·v, two layers", "additive": "f = n + v, one layer and a bias"}
GRADIENTS = {
    1: "half the gradient of (f − 1)², as the paper prints it (factor 1)",
    2: "the true gradient of (f − 1)² (factor 2)",
}
WIDE = 140  # characters that all columns need
NO_VALUE = "–"


def theory_table(methods: Sequence[Mapping[str, Any]], width: int) -> Table:
    """One row per method; columns on the first round and on errors only if `width` allows."""
    table = plain_table()
    rows = [columns(method) for method in methods]
    shown = [index for index, (_, always, _) in enumerate(rows[0]) if always or width >= WIDE]
    for index in shown:
        table.add_column(rows[0][index][0], justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[index][2] for index in shown))
    return table


def columns(method: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    """A method's cells: heading, whether it is always shown, and text."""
    correlation = method["correlation"]
    return [
        ("method", True, method["method"]),
        ("frozen", True, "always" if method["frozen"] is None else str(method["frozen"])),
        ("r", True, decimal(method["ratio"], 4)),
        ("theory", True, decimal(method["theory"], 4)),
        ("printed", True, decimal(method["printed"], 4)),
        ("|r − theory|", False, short(method["error"])),
        ("|r − printed|", False, short(method["printed_error"])),
        ("correlation", True, decimal(correlation["rounds"], 3)),
        ("first round", False, decimal(correlation["first_round"], 3)),
        ("faster", True, win_text(method["faster"])),
        ("first round", False, win_text(method["faster_first_round"])),
        ("final loss", False, short(method["final_loss"])),
    ]


def headline(result: Mapping[str, Any]) -> str:
    """The simulated model and its settings."""
    local = "gradient flow to convergence" if result["flow"] else plural(result["steps"], "local step")
    return (
        f"{OUTPUTS[result['model']]}; {result['clients']} clients; {plural(result['seeds'], 'seed')}; "
        f"{plural(result['rounds'], 'round')}; {local}; learning rate {result['lr']:g}; "
        f"gradient factor {result['gradient']}"
    )


def verdict(result: Mapping[str, Any]) -> list[str]:
    """Agreement of theory and simulation, speed of FedBug, and seeds that diverged."""
    first, *others = result["methods"]
    lines = [agreement(first, result["seeds"])]
    fedbugs = [method for method in others if method["frozen"] is not None and method["faster"]["of"]]
    if fedbugs:
        wins = ", ".join(f"{win_text(method['faster'])} ({method['method']})" for method in fedbugs)
        start = ", ".join(win_text(method["faster_first_round"]) for method in fedbugs)
        lines.append(f"fedbug contracts faster than fedavg in {wins} seeds; in the first round in {start}")
    if flow := result["printed_flow"]:
        lines.append(
            f"the paper's local minimum has an extra ½ and n·v = {flow['product']:.2f}: with it, rounds "
            f"converge to a loss of {flow['final_loss']:.4f}, not 0"
        )
    if diverged := {row["method"]: row["diverged"] for row in result["methods"] if row["diverged"]}:
        counts = ", ".join(f"{name} in {plural(count, 'seed')}" for name, count in diverged.items())
        lines.append(f"diverged: {counts}; try a smaller --lr")
    return lines


def agreement(first: Mapping[str, Any], seeds: int) -> str:
    """A sentence on the agreement of theory and simulation for the method `first`."""
    correlation, rounds = first["correlation"], first["rounds_compared"]
    if not rounds:
        return f"{first['method']}: no round can be compared"
    scope = f"over {plural(rounds, 'round')} of {plural(seeds, 'seed')}"
    if correlation["rounds"] is None:
        text = f"theory predicts the same ratio everywhere, so there is no correlation, {scope}"
    else:
        first_round = correlation["first_round"]
        start = "" if first_round is None else f", {first_round:.3f} in the first round alone"
        text = f"correlation {correlation['rounds']:.3f} {scope}{start}"
    return (
        f"theory and simulation, {first['method']}: {text}; |r − theory| {short(first['error'])} on average"
    )


def column_notes(result: Mapping[str, Any]) -> list[str]:
    """The meaning of the columns."""
    return [
        f"Clients follow {GRADIENTS[result['gradient']]}.",
        f"r = d of the next round / d while d ≥ {result['least']:g}: the geometric mean over a seed's "
        "rounds, then the median over seeds.",
        "theory: (m − 1 + q·cos²θ)/m, where q is the fraction of d left by the frozen steps. printed: the "
        "papers' formula (1 + (1 − η·v²)^s·cos²θ)/2; ½ if v is always frozen.",
        "|r − …|: mean over rounds. correlation: of r and theory. first round: of that round alone.",
    ]


def win_text(wins: Mapping[str, Any] | None) -> str:
    """'48/50': wins, and the number of seeds that can be compared."""
    return NO_VALUE if wins is None or not wins["of"] else f"{wins['seeds']}/{wins['of']}"


def decimal(value: float | None, digits: int) -> str:
    """A number with `digits` decimals; a large one in scientific notation."""
    return NO_VALUE if value is None else f"{value:.{digits}f}" if abs(value) < 100 else short(value)


def short(value: float | None) -> str:
    """A number with two digits in scientific notation."""
    return NO_VALUE if value is None else f"{value:.1e}"
