"""Every shipped table resolves, and each of its numbers belongs to one cell of its grid."""

from functools import cache
from typing import Any

import pytest

from kedge.config.document import SHIPPED, read
from kedge.config.experiment import Experiment
from kedge.config.grid import Cell, cells
from kedge.core.errors import DataError
from kedge.core.sampling import Participation
from kedge.measure.cells import parse_cell
from kedge.reproduce.comparisons import comparisons
from kedge.reproduce.measured import Measured, Place
from kedge.reproduce.paper import Paper, cell_of, document_of, names, paper_of

Document = dict[str, Any]

CONTROLS: dict[str, set[str]] = {}  # by table: cells that train although the paper prints no number for them
# The number of printed numbers of a table, and their sum, from the specification's copy of the tables.
PRINTED = {
    "fedbug-table1": (80, 6366.04), "fedbug-table2": (80, 3658.06), "fedbug-table3": (80, 2246.44),
    "fedbug-table4": (48, 2029.46), "fedbug-table5": (12, 454.05),
    "feddyn-fedavg-table1": (36, 2365.47), "feddyn-fedavg-table2": (11, 2884.91),
    "feddyn-fedavg-table3": (6, 725.0), "feddyn-fedavg-table4": (4, 221.1),
    "feddyn-fedavg-figure2": (6, 810.0),
    "fedtr-table1": (42, 2876.8), "fedtr-table2": (110, 10367.57),
    "layer-expansion-table2": (96, 6165.78), "layer-expansion-section53": (8, 403.94),
}  # fmt: skip
# Comparisons that the paper's own numbers contradict.
CONTRADICTED = {
    "fedbug-table1": 2 * ["FedBug (10 %) over Vanilla in FedDecorr, IID (1 % of the clients a round)"],
    "fedbug-table3": [
        "FedBug (48 %) over Vanilla in FedDyn, IID (10 % of the clients a round)",
        "FedBug (12 %) over Vanilla in FedDyn, IID (30 % of the clients a round)",
        "FedBug (12 %) over Vanilla in FedExP, IID (30 % of the clients a round)",  # a tie
        "FedBug (12 %) over Vanilla in FedDecorr, α = 0.5 (30 % of the clients a round)",
    ],
    "feddyn-fedavg-table1": ["Cross-device: FedDyn→FedAvg over Cross-device: FedDyn in CIFAR-10 (Non-IID)"],
    "fedtr-table2": [
        "FedTR over FedDyn in COVID-19 (Best accuracy, α = 0.5)",
        "FedTR over SCAFFOLD in OrganAMNIST (Best accuracy, α = 0.5)",
        "FedTR under FedDyn in COVID-19 (Rounds to a target, α = 0.5)",  # a tie
    ],
    "layer-expansion-table2": ["Anti over Vanilla in CIFAR-100, T = 500 (As printed)"],
}
DEVICE, SILO = "feddyn-fedavg-device", "feddyn-fedavg-silo"
UNEVEN = "dirichlet-classes"
ONE_PERCENT = Participation("bernoulli", share=0.01)
each_table = pytest.mark.parametrize("name", names())


@cache
def table(name: str) -> tuple[Paper, list[Cell]]:
    """The printed table and the cells of its grid."""
    document = document_of(name)
    return paper_of(document), cells(document)


@each_table
def test_every_printed_number_belongs_to_one_cell_and_every_cell_gives_one(name: str) -> None:
    paper, grid = table(name)
    used = {cell_of(entry, grid).name for entry in paper.entries}
    assert {cell.name for cell in grid} - used == CONTROLS.get(name, set())


@each_table
def test_the_paper_s_settings_lead_to_its_metric(name: str) -> None:
    paper, grid = table(name)
    for entry in paper.entries:
        experiment = cell_of(entry, grid).experiment
        cell = parse_cell(entry.metric)
        if entry.metric.startswith("features."):
            assert 0 < experiment.measure.features_every <= experiment.rounds
        else:
            assert cell is not None
            assert experiment.evaluation.all or cell.model != "all"
        if entry.at.isdecimal():
            assert int(entry.at) <= experiment.rounds
            assert int(entry.at) % experiment.evaluation.every == 0
        else:
            assert entry.at in ("last", "best")


@each_table
def test_printed_numbers_are_in_percent_and_bounds_belong_to_targets(name: str) -> None:
    paper, _ = table(name)
    for entry in paper.entries:
        assert not entry.bound or entry.target is not None
        assert entry.target is None or 0 < entry.target < 1
        if entry.percent and entry.value is not None:
            assert 1 < entry.value <= 100


@each_table
def test_a_table_says_where_it_is_from_and_what_it_claims(name: str) -> None:
    paper, _ = table(name)
    assert paper.name == name
    assert paper.title
    assert paper.source
    assert paper.claims
    assert all(note.endswith(".") for note in paper.notes)


@each_table
def test_the_printed_numbers_are_the_specification_s(name: str) -> None:
    paper, _ = table(name)
    values = [entry.value for entry in paper.entries if entry.value is not None]
    assert (len(values), round(sum(values), 2)) == PRINTED.get(name, (0, 0))


@each_table
def test_the_claims_hold_in_print_but_for_known_comparisons(name: str) -> None:
    paper, _ = table(name)
    measured = Measured(paper, "full", tuple(Place(entry, {}) for entry in paper.entries), ())
    every = [one for claim in paper.claims for one in comparisons(claim, measured)]
    assert [one.name for one in every if one.printed is False] == CONTRADICTED.get(name, [])


@pytest.mark.parametrize(
    ("name", "some", "key", "expected"),
    [
        ("fedbug-table1", {}, "rounds", 300),
        ("fedbug-table1", {}, "training.epochs", 10),
        ("fedbug-table1", {"method": "feddecorr(beta=0.01)"}, "method.beta", 0.01),
        ("fedbug-table1", {"method": "fedprox(mu=1e-4)"}, "method.mu", 1e-4),
        ("fedbug-table2", {}, "rounds", 500),
        ("fedbug-table2", {}, "training.epochs", 5),
        ("fedbug-table2", {}, "optimizer.decay", 1.0),
        ("fedbug-table2", {"participation.share": 0.01}, "participation", ONE_PERCENT),
        ("fedbug-table3", {}, "training.epochs", 5),
        ("fedbug-table3", {}, "partition.clients", 10),
        ("fedbug-table3", {"method": "fedbug(ratio=0.48) + feddyn(alpha=0.01)"}, "schedule.ratio", 0.48),
        ("fedbug-table4", {"data": "cifar100"}, "training.epochs", 5),
        ("fedbug-table4", {"data": "tiny-imagenet"}, "training.epochs", 3),
        ("fedbug-table4", {"model": "resnet18"}, "model.norm", "group"),
        ("fedbug-table5", {}, "rounds", 100),
        ("fedbug-figure4", {"data": "cifar10"}, "training.epochs", 10),
        ("feddyn-fedavg-table1", {"protocol": SILO, "data": "cifar10"}, "training.epochs", 1),
        ("feddyn-fedavg-table1", {"protocol": DEVICE, "method": "feddyn"}, "method.alpha", 0.1),
        ("feddyn-fedavg-table1", {"protocol": SILO}, "optimizer.decay", 0.99),
        ("feddyn-fedavg-table1", {"data": "cifar10", "partition": UNEVEN}, "partition.alpha", 0.5),
        ("feddyn-fedavg-table1", {"data": "tiny-imagenet"}, "model.name", "resnet34"),
        ("feddyn-fedavg-table2", {"method": "feddyn -> fedavg@0.45"}, "starts", [450]),
        ("feddyn-fedavg-table3", {"method": "feddyn"}, "method.alpha", 0.01),
        ("feddyn-fedavg-table4", {}, "partition.alpha", 0.1),
        ("feddyn-fedavg-figure2", {"partition": UNEVEN}, "partition.clients", 10),
        ("feddyn-fedavg-figure4", {}, "participation.share", 1.0),
        ("fedtr-table1", {}, "partition.alpha", 0.1),
        ("fedtr-table1", {"method": "fedprox"}, "method.mu", 0.01),
        ("fedtr-table2", {}, "partition.clients", 20),
        ("fedtr-table2", {}, "rounds", 200),
        ("layer-expansion-table2", {}, "optimizer.lr", 0.005),
        ("layer-expansion-table2", {}, "training.batch", 10),
        ("layer-expansion-table2", {"method": "fedrep"}, "training.epochs", 2),
        ("layer-expansion-table2", {"data": "tiny-imagenet"}, "evaluation.local", "split"),
        ("layer-expansion-section53", {}, "participation", Participation("exact", per_round=10)),
    ],
)  # fmt: skip
def test_all_cells_of_a_kind_have_the_paper_s_setting(
    name: str, some: Document, key: str, expected: Any
) -> None:
    found = [cell.experiment for cell in table(name)[1] if some.items() <= cell.settings.items()]
    assert found
    assert all(setting(experiment, key) == expected for experiment in found)


def setting(experiment: Experiment, path: str) -> Any:
    """A value of the resolved experiment by its dotted path."""
    found: Any = experiment
    for key in path.split("."):
        found = found[key] if isinstance(found, dict) else getattr(found, key)
    return found


def test_every_table_has_its_file_of_numbers_and_every_file_a_table() -> None:
    assert {path.stem for path in (SHIPPED / "published").glob("*.csv")} == set(names())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("fedbug-table2", 80),
        ("fedbug-table4", 40),
        ("feddyn-fedavg-table1", 36),
        ("feddyn-fedavg-table2", 8),
    ],
)
def test_the_grid_has_the_cells_of_the_table(name: str, count: int) -> None:
    assert len(cells(read(name))) == count


def test_a_number_that_two_cells_could_give_is_refused() -> None:
    document: Document = document_of("fedbug-table5")
    document["grid"] = {**document["grid"], "optimizer.lr": [0.1, 0.2]}
    entry = paper_of(document).entries[0]
    with pytest.raises(DataError, match="2 cells of the grid have"):
        cell_of(entry, cells(document))
