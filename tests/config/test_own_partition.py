"""A partition of the user's own, by file and name."""

from pathlib import Path

import pytest

from kedge.config.document import override, read
from kedge.config.experiment import resolve
from kedge.config.federations import federation_of
from kedge.core.errors import RequestError

FILE = """
import numpy as np

def blocks(clients: int = 2):
    return lambda labels, seed, keys=None: np.array_split(np.arange(len(labels)), clients)

def bad(kind: str):
    given = {
        "twice": [np.arange(3), np.arange(3)],
        "outside": [np.array([0, 10**6])],
        "floats": [np.array([0.5])],
        "nobody": [],
        "none": None,
        "empty": [np.arange(3), np.arange(0)],
    }
    return lambda labels, seed, keys=None: given[kind]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return str(path)


def client_sizes(partition: str) -> list[int]:
    document = override(read("quickstart"), {"partition": partition, "participation.per_round": 1})
    return [len(client) for client in federation_of(resolve(document)).clients]


def test_it_deals_the_samples_out(file: str) -> None:
    two, four = client_sizes(f"{file}:blocks"), client_sizes(f"{file}:blocks(clients=4)")
    assert len(two) == 2
    assert len(four) == 4
    assert sum(two) == sum(four)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("twice", "a sample occurs twice"),
        ("outside", "client 0 got 0 to 1000000"),
        ("floats", "client 0 got float64"),
        ("nobody", "it returned no client"),
        ("none", "it returned a NoneType"),
        ("empty", "client 1 got int64 of shape"),
    ],
)
def test_what_it_must_not_give_is_told(file: str, kind: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        client_sizes(f"{file}:bad(kind={kind!r})")


def test_a_name_that_is_not_there_is_told(file: str) -> None:
    with pytest.raises(RequestError, match="no 'missing'"):
        client_sizes(f"{file}:missing")
