"""The bench of networks: every row is there, with its ratios."""

import pytest

from kedge.bench import networks
from kedge.bench.networks import Setting, speeds
from kedge.cli.bench import asked
from kedge.core.errors import RequestError


def test_rows_are_compared_with_the_plain_loop_and_with_central(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(networks.NETWORKS, "lenet5", 10)
    said: list[str] = []
    rows = speeds([Setting("lenet5", 2, 1)], ["fp32"], "cpu", 1, said.append)
    assert [row.how for row in rows] == ["plain loop", "stacked", "central, compiled"]
    assert all(row.samples_per_second > 0 and row.first_round_seconds > 0 for row in rows)
    assert rows[0].to_plain == 1
    assert rows[2].to_central == 1
    assert rows[1].to_plain == pytest.approx(rows[1].samples_per_second / rows[0].samples_per_second)
    assert all(row.memory is None for row in rows)
    assert any("warming up" in message for message in said)


def test_defaults_by_device() -> None:
    settings, precisions = asked("cuda", "standard-cnn,resnet20", "", "", 0)
    assert [one.clients for one in settings] == [1, 10, 100, 1, 10, 100]
    assert {one.steps for one in settings} == {100}
    assert precisions == ["tf32", "bf16"]
    settings, precisions = asked("cpu", "standard-cnn", "", "", 0)
    assert [one.clients for one in settings] == [1, 10]
    assert precisions == ["fp32"]


@pytest.mark.parametrize(
    ("networks", "clients", "precisions", "steps", "said"),
    [
        ("standart-cnn", "", "", 0, "Did you mean 'standard-cnn'"),
        ("standard-cnn", "0", "", 0, "--clients 0"),
        ("standard-cnn", "ten", "", 0, "--clients ten"),
        ("standard-cnn", "", "tf32", 0, "allowed here: fp64, fp32, bf16"),
        ("standard-cnn", "", "", -1, "--steps -1"),
    ],
)
def test_wrong_requests(networks: str, clients: str, precisions: str, steps: int, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        asked("cpu", networks, clients, precisions, steps)
