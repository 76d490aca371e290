"""Sentences below a reproduced table: the meaning of its lines, and limits of the comparison."""

from collections.abc import Iterable

from kedge.measure.cells import parse_cell
from kedge.report.numbers import plural
from kedge.reproduce.measured import FULL, Measured, Place
from kedge.reproduce.paper import Entry

MODELS = {
    "distributed": "the model that is sent to the clients",
    "average": "the mean of the round's participants",
    "all": "the mean of all clients' last models",
    "personal": "each client's own model",
}
DATA = {"global": "the common test set", "local": "the clients' own tests"}


def legend(measured: Measured, seeds: int) -> list[tuple[str, str]]:
    """The meaning of the lines printed, measured and difference."""
    meanings = [("printed", printed_meaning(measured)), ("measured", measured_meaning(measured, seeds))]
    has_difference = any(place.difference is not None for place in measured.places)
    return [*meanings, ("difference", difference_meaning(measured))] if has_difference else meanings


def printed_meaning(measured: Measured) -> str:
    """The meaning of printed numbers."""
    runs = measured.paper.runs
    text = "the paper's number" + (f", the mean of {plural(runs, 'run')}" if runs > 1 else "")
    missing = [entry for entry in measured.paper.entries if entry.value is None and not entry.bound]
    if len(missing) == len(measured.paper.entries):
        return "the paper prints no numbers."
    return text + ("; – where it has none." if missing else ".")


def measured_meaning(measured: Measured, seeds: int) -> str:
    """The meaning of measured numbers: number of seeds, metric, round."""
    counts = {len(place.by_seed) for place in measured.places if place.by_seed}
    statistic = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed" if seeds else ""
    if len(counts) > 1:
        statistic += " (a number in parentheses: how many seeds, where it is another number)"
    text = "; ".join(reading for reading in (statistic, *readings(measured.paper.entries)) if reading)
    return f"{text}."


def difference_meaning(measured: Measured) -> str:
    """The meaning of differences, and their unit."""
    entries = [place.entry for place in measured.places if place.difference is not None]
    shares = any(entry.percent for entry in entries)
    rounds = any(entry.target is not None for entry in entries)
    units = ["percentage points"] * shares + ["rounds"] * rounds
    return f"measured minus printed{', in ' * bool(units)}{' or '.join(units)}."


def readings(entries: Iterable[Entry]) -> list[str]:
    """Metric and rounds of the numbers, one text per metric."""
    rounds: dict[str, list[str]] = {}
    targets: dict[str, list[str]] = {}
    for entry in entries:
        if entry.target is None:
            rounds.setdefault(entry.metric, []).append(entry.at)
        else:
            targets.setdefault(entry.metric, []).append(target_text(entry))
    texts = [f"{metric_words(metric)} in {rounds_words(read)}" for metric, read in rounds.items()]
    for metric, values in targets.items():
        reached = " or ".join(dict.fromkeys(values)) if len(set(values)) < 3 else "its target"
        texts.append(f"the first round in which {metric_words(metric)} reaches {reached}")
    return texts


def target_text(entry: Entry) -> str:
    """A target as the paper writes it."""
    target = entry.target or 0.0
    return f"{100 * target:g} %" if "accuracy" in entry.metric else f"{target:g}"


def metric_words(metric: str) -> str:
    """A metric in words, with its name."""
    cell = parse_cell(metric)
    if cell is None:
        return metric
    model = MODELS.get(cell.model, f"the model {cell.model}")
    tuned = " after fine-tuning on the client's data" if ".tuned" in cell.suffix else ""
    return f"{cell.kind} of {model}{tuned} on {DATA[cell.data]} ({metric})"


def rounds_words(rounds: Iterable[str]) -> str:
    """Values of `Entry.at` in words: "the last round", "round 100, 200 or 300"."""
    distinct = dict.fromkeys(rounds)
    numbers = sorted((at for at in distinct if at.isdigit()), key=int)
    words = [f"the {at} round" for at in distinct if not at.isdigit()]
    if numbers:
        before = f"{', '.join(numbers[:-1])} or " if len(numbers) > 1 else ""
        words.insert(0, f"round {before}{numbers[-1]}")
    return " or ".join(words)


def notes(measured: Measured) -> list[str]:
    """Sentences on limits of the comparison: short runs, failed runs."""
    sentences = scale_notes(measured) if measured.scale != FULL else []
    places = [place for place in measured.places if place.by_seed and place.mean is None]
    if any(place.entry.target is None for place in places):
        sentences.append(
            "Diverged: the loss of the run became infinite or not a number. 1/3: one of three runs."
        )
    if any(place.entry.target is not None for place in places):
        sentences.append("Not reached: the run ended before it reached the target. 1/3: one of three runs.")
    return sentences


def scale_notes(measured: Measured) -> list[str]:
    """Sentences on the differences between shortened runs and the paper's runs."""
    sentences = [
        f"Scale {measured.scale}: these runs are shorter than the paper's, so their numbers are not expected "
        "to agree with the print."
    ]
    moved = list(dict.fromkeys((int(place.entry.at), place.at) for place in measured.places if place.at))
    if moved:
        pairs = ", ".join(f"{at} → {read}" for at, read in sorted(moved))
        sentences.append(f"Rounds of the paper, and the rounds of these runs that are read instead: {pairs}.")
    if any(is_incomparable(place) for place in measured.places):
        sentences.append("Numbers of rounds have no difference at this scale.")
    return sentences


def is_incomparable(place: Place) -> bool:
    """Whether a measured number cannot be compared with the printed one."""
    return bool(place.by_seed) and not place.comparable
