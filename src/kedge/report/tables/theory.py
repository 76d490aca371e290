"""The linear laboratory's result as a table for a terminal, and what it says in a few lines."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

OUTPUTS = {"multiplicative": "f = n·v, two layers", "additive": "f = n + v, one layer and a bias"}
GRADIENTS = {
    1: "half the gradient of (f − 1)², as the paper prints it (factor 1)",
    2: "the true gradient of (f − 1)² (factor 2)",
}
WIDE = 140  # letters that all columns need
GAP = "–"


def rendered(methods: Sequence[Mapping[str, Any]], width: int) -> Table:
    """A row a method; what is told of the first round and the errors only where there is room."""
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    rows = [columns(one) for one in methods]
    shown = [place for place, (_, always, _) in enumerate(rows[0]) if always or width >= WIDE]
    for place in shown:
        table.add_column(rows[0][place][0], justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[place][2] for place in shown))
    return table


def columns(one: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    """A method's cells: heading, whether it is always shown, and text."""
    told = one["correlation"]
    return [
        ("method", True, one["method"]),
        ("frozen", True, "always" if one["frozen"] is None else str(one["frozen"])),
        ("r", True, decimal(one["ratio"], 4)),
        ("theory", True, decimal(one["theory"], 4)),
        ("printed", True, decimal(one["printed"], 4)),
        ("|r − theory|", False, short(one["error"])),
        ("|r − printed|", False, short(one["printed_error"])),
        ("correlation", True, decimal(told["rounds"], 3)),
        ("first round", False, decimal(told["first_round"], 3)),
        ("faster", True, win_text(one["faster"])),
        ("first round", False, win_text(one["faster_first_round"])),
        ("final loss", False, short(one["final_loss"])),
    ]


def headline(result: Mapping[str, Any]) -> str:
    """What was simulated."""
    local = "gradient flow to its end" if result["flow"] else plural(result["steps"], "local step")
    return (
        f"{OUTPUTS[result['model']]}; {result['clients']} clients; {plural(result['seeds'], 'seed')}; "
        f"{plural(result['rounds'], 'round')}; {local}; learning rate {result['lr']:g}; "
        f"gradient factor {result['gradient']}"
    )


def verdict(result: Mapping[str, Any]) -> list[str]:
    """Whether theory and simulation agree, and whether FedBug contracts faster."""
    first, *others = result["methods"]
    lines = [agreement(first, result["seeds"])]
    bugs = [one for one in others if one["frozen"] is not None and one["faster"]["of"]]
    if bugs:
        each = ", ".join(f"{win_text(one['faster'])} ({one['method']})" for one in bugs)
        start = ", ".join(win_text(one["faster_first_round"]) for one in bugs)
        lines.append(f"fedbug contracts faster than fedavg in {each} seeds; in the first round in {start}")
    if flow := result["printed_flow"]:
        lines.append(
            f"the paper's local minimum, with its extra ½, has n·v = {flow['product']:.2f}: rounds by it end "
            f"at a loss of {flow['final_loss']:.4f}, not 0"
        )
    if gone := {one["method"]: one["diverged"] for one in result["methods"] if one["diverged"]}:
        each = ", ".join(f"{name} in {plural(count, 'seed')}" for name, count in gone.items())
        lines.append(f"diverged: {each}; try a smaller --lr")
    return lines


def agreement(first: Mapping[str, Any], seeds: int) -> str:
    """Theory beside simulation for the first method."""
    told, rounds = first["correlation"], first["rounds_compared"]
    if not rounds:
        return f"{first['method']}: no round can be compared"
    where = f"over {plural(rounds, 'round')} of {plural(seeds, 'seed')}"
    if told["rounds"] is None:
        same = f"theory says the same everywhere, so that there is no correlation, {where}"
    else:
        begin = "" if told["first_round"] is None else f", {told['first_round']:.3f} in the first alone"
        same = f"correlation {told['rounds']:.3f} {where}{begin}"
    return (
        f"theory and simulation, {first['method']}: {same}; |r − theory| {short(first['error'])} on average"
    )


def explained(result: Mapping[str, Any]) -> list[str]:
    """What the columns are."""
    return [
        f"Clients follow {GRADIENTS[result['gradient']]}.",
        f"r = d of the next round / d, compared while d ≥ {result['least']:g}; a seed's is the geometric "
        "mean of its rounds, the median seed's is shown.",
        "theory: (m − 1 + q·cos²θ)/m, q what the frozen steps leave of d. printed, in the papers: "
        "(1 + (1 − η·v²)^s·cos²θ)/2; ½ if v is always frozen.",
        "|r − …|: mean over rounds. correlation: of r and theory. first round: there alone.",
    ]


def win_text(found: Mapping[str, Any] | None) -> str:
    """'48/50': in how many of the seeds that can be compared."""
    return GAP if found is None or not found["of"] else f"{found['seeds']}/{found['of']}"


def decimal(value: float | None, digits: int) -> str:
    """With so many digits after the point; one that has run away is short."""
    return GAP if value is None else f"{value:.{digits}f}" if abs(value) < 100 else short(value)


def short(value: float | None) -> str:
    """Two digits."""
    return GAP if value is None else f"{value:.1e}"


def plural(count: int, word: str) -> str:
    """'1 seed', '3,626 rounds'."""
    return f"{count:,} {word}" + ("" if count == 1 else "s")
