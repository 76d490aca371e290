"""The benchmark of a federation starts a server and three clients for real."""

import pytest
from tests.cli.command import kedge

from kedge.bench import federation
from kedge.core.errors import RequestError


@pytest.mark.slow
def test_a_federation_on_loopback_has_a_row_beside_one_process() -> None:
    pytest.importorskip("flwr")
    answer = kedge("bench", "federation", "--json")
    assert answer.code == 0
    rows = answer.json()["federation"]
    assert [row["how"] for row in rows] == [
        "one process, sequential", "kedge serve and kedge join, on Flower",
    ]  # fmt: skip
    assert all(row["samples_per_second"] > 0 and row["seconds_a_round"] > 0 for row in rows)


def test_without_flower_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(federation, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match="pip install"):
        federation.federation_speeds(print)
