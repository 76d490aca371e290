"""Costs read from histories: phases, totals, targets, tables and the figure."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from rich.console import Console

from kedge.report.costs import cost_to_target, efficiency, mean_seconds, phases, seconds, total
from kedge.report.numbers import with_prefix
from kedge.report.plots.cost import KINDS, cost_figure
from kedge.report.plots.png import png
from kedge.report.runs import Run
from kedge.report.tables.comparison import comparison, comparison_table
from kedge.report.tables.cost import MAX_PHASES, cost_notes, phase_table, run_table, target_table


def line(round: int, parameters: int = 10, macs: int = 600, stage: int = 0, **others: Any) -> dict[str, Any]:
    cost = {"parameters": parameters, "samples": 6, "updates": 3 * parameters, "macs": macs}
    cost |= {"bytes_down": 4 * parameters, "bytes_up": 8 * parameters}
    method = ("first", "second")[stage]
    return {
        "round": round, "stage": stage, "method": method, "cost": cost, "time": {"seconds": 2.0}, **others
    }  # fmt: skip


HISTORY = [line(1, 2, 300), line(2, 2, 500), line(3), line(4), line(5, stage=1)]


def text(table: Any, width: int = 80) -> list[str]:
    file = StringIO()
    Console(width=width, file=file).print(table)
    return [row.rstrip() for row in file.getvalue().splitlines()]


def test_a_phase_is_a_stretch_of_one_method_and_one_number_of_parameters() -> None:
    found = phases(HISTORY)
    assert [(p["method"], p["first_round"], p["last_round"], p["parameters"]) for p in found] == [
        ("first", 1, 2, 2), ("first", 3, 4, 10), ("second", 5, 5, 10),
    ]  # fmt: skip
    first = found[0]
    assert (first["rounds"], first["updates"], first["macs"], first["bytes_down"], first["bytes_up"]) == (
        2, 12, 800, 16, 32,
    )  # fmt: skip
    assert first["macs_per_sample"] == 800 / 12
    assert not phases([])


def test_what_closes_again_is_a_phase_of_its_own() -> None:
    assert [p["rounds"] for p in phases([line(1, 2), line(2, 10), line(3, 2)])] == [1, 1, 1]


def test_a_total_needs_every_round_s_cost() -> None:
    assert total(HISTORY) == {
        "samples": 30, "updates": 102, "macs": 2600, "bytes_down": 136, "bytes_up": 272,
    }  # fmt: skip
    assert total(HISTORY, until=2) == {
        "samples": 12, "updates": 12, "macs": 800, "bytes_down": 16, "bytes_up": 32,
    }  # fmt: skip
    old = {k: v for k, v in line(6).items() if k != "cost"}
    assert total([*HISTORY, old]) is None
    assert total([]) is None
    assert total([*HISTORY, {**old, "diverged": True}]) == total(HISTORY)


def test_accuracy_per_multiply_add_and_per_byte_over_the_seeds() -> None:
    row = efficiency([HISTORY, HISTORY[:2]], 0.5)
    assert row["cost"]["macs"] == (2600 + 800) / 2
    assert row["accuracy_per_mac"] == 0.5 / 1700
    assert row["accuracy_per_byte"] == 0.5 / ((136 + 272 + 16 + 32) / 2)
    assert efficiency([HISTORY], None) == {
        "cost": total(HISTORY),
        "accuracy_per_mac": None,
        "accuracy_per_byte": None,
    }
    assert efficiency([HISTORY, []], 0.5) == {
        "cost": None,
        "accuracy_per_mac": None,
        "accuracy_per_byte": None,
    }


def test_the_price_of_a_target_is_of_the_rounds_up_to_it_and_of_all_seeds_or_none() -> None:
    row = cost_to_target([HISTORY, HISTORY], [2, 4])
    assert row["rounds_to_target"] == 3
    assert row["cost_to_target"]["macs"] == (800 + 2000) / 2
    assert row["seconds_to_target"] == 6.0
    assert cost_to_target([HISTORY, HISTORY], [2, None]) == dict.fromkeys(row)
    assert cost_to_target([], []) == dict.fromkeys(row)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"), (832, "832"), (999.6, "1.00 k"), (52096, "52.1 k"), (9.996e6, "10.0 M"), (999_499, "999 k"),
        (873_039_000_000, "873 G"), (0.5, "0.500"), (None, "–"),
    ],
)  # fmt: skip
def test_numbers_in_few_digits(value: float | None, said: str) -> None:
    assert with_prefix(value) == said


def test_a_paper_s_count_is_told_in_six_digits() -> None:
    assert [with_prefix(n * 10**6, digits=6) for n in (873_039, 865_344, 314_912, 838_880)] == [
        "873.039 G", "865.344 G", "314.912 G", "838.880 G",
    ]  # fmt: skip
    assert with_prefix(6_980_000_000, "B") == "6.98 GB"


def test_the_table_of_phases_has_their_sum_and_names_stages() -> None:
    shown = text(phase_table(phases(HISTORY), total(HISTORY) or {}))
    assert shown[0].split() == ["rounds", "train", "updated", "MACs/sample", "MACs", "down", "up"]
    assert shown[1] == "first"
    assert shown[2].split() == ["1–2", "2", "12", "66.67", "800", "16", "B", "32", "B"]
    assert shown[4] == "second"
    assert shown[-1].split() == ["all", "102", "86.67", "2.60", "k", "136", "B", "272", "B"]
    alone = text(phase_table(phases(HISTORY[2:4]), total(HISTORY[2:4]) or {}))
    assert len(alone) == 2


def test_of_many_phases_the_first_are_shown_and_the_sum_is_of_all() -> None:
    many = [line(n, 2 + n % 2) for n in range(1, 101)]
    shown = text(phase_table(phases(many), total(many) or {}))
    assert shown[-2].strip() == f"… {100 - MAX_PHASES} more"
    assert shown[-1].split()[1] == with_prefix(sum(3 * (2 + n % 2) for n in range(1, 101)))


def rows() -> list[dict[str, Any]]:
    named = {"a": (HISTORY, 0.8, 4), "b": (HISTORY[:2], 0.4, None), "old": ([], 0.5, None)}
    return [
        {"method": name, **efficiency([history], accuracy), **cost_to_target([history], [reached])}
        for name, (history, accuracy, reached) in named.items()
    ]


def test_the_table_of_runs_takes_units_in_which_ratios_can_be_read() -> None:
    shown = text(run_table(rows()))
    assert shown[0].split() == ["method", "updated", "MACs", "down", "up", "%/kMAC", "%/kB"]
    assert shown[1].split()[-2:] == ["30.8", "196"]  # 80 / 2.6 and 80 / 0.408
    assert shown[2].split()[-2:] == ["50.0", "833"]
    assert shown[3].split() == ["old", *["–"] * 6]
    assert "old" in cost_notes(rows())[-1]
    assert not any("no costs" in note for note in cost_notes(rows()[:2]))


def test_missing_seconds_are_a_gap_in_the_tables(tmp_path: Path) -> None:
    """The rounds of a private federation have no times."""
    timeless = [{k: v for k, v in row.items() if k not in ("time", "cost")} for row in HISTORY]
    assert seconds(HISTORY) == 10.0
    assert seconds(timeless) is None
    assert mean_seconds([2.0, 4.0]) == 3.0
    assert mean_seconds([2.0, None]) is None
    row = {"method": "private", **efficiency([timeless], 0.8), **cost_to_target([timeless], [4])}
    assert text(target_table([row], 0.75))[1].split() == ["private", "4", *["–"] * 5]
    accuracies = {"distributed.global.accuracy": 0.5}
    runs = [Run(tmp_path, {}, [{**line, **accuracies} for line in lines]) for lines in (HISTORY, timeless)]
    shown = text(comparison_table([comparison([run])[0] for run in runs]))
    assert [row.split()[-1] for row in shown[1:]] == ["10.0", "–"]


def test_the_table_of_a_target_says_who_did_not_reach_it() -> None:
    shown = text(target_table(rows(), 0.75))
    assert shown[0].startswith("to 75 %")
    assert shown[1].split() == ["a", "4", "72", "2.00", "k", "96", "B", "192", "B", "8.0"]
    assert shown[2].split() == ["b", "not", "reached"]


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_in_the_figure_areas_are_costs() -> None:
    """The width of a bar is the number of rounds, its height the mean cost of a round."""
    figure = cost_figure([("a", HISTORY), ("b", HISTORY[:2])])
    grid = np.array(figure.axes).reshape(2, len(KINDS))
    for axes, history in zip(grid, (HISTORY, HISTORY[:2]), strict=True):
        for one, kind in zip(axes, KINDS, strict=True):
            area = sum(bar.get_width() * bar.get_height() for bar in bars(one))
            whole = total(history) or {}
            assert area == pytest.approx(sum(whole[key] for key, _ in kind.parts))
            assert one.get_xlim() == (0.5, 5.5)
            assert one.get_ylim() == (0, max(kind.per_round(phase) for phase in phases(HISTORY)))
    down, up = bars(grid[0, 2])[0], bars(grid[0, 2])[3]
    assert up.get_y() == down.get_height()  # stacked on the bytes down
    assert [(bar.get_x(), bar.get_width()) for bar in bars(grid[0, 0])] == [(0.5, 2), (2.5, 2), (4.5, 1)]
    titles = "\n".join(one.get_title(loc="left") for one in figure.axes).split("\n")
    assert {"a", "b", "102 in all", "2.60 k in all", "408 B in all"} <= set(titles)
    assert [label.get_text() for label in grid[0, 0].get_xticklabels()] == ["1", "3", "5"]
    assert len(png(figure)) > 5000


def test_a_run_without_rounds_is_an_empty_row() -> None:
    figure = cost_figure([("a", HISTORY), ("none", [])])
    assert figure.axes[3].get_title(loc="left") == "none\n0 in all"
    assert png(cost_figure([("none", [])]))
