"""The ways to train a setting, by device, precision and number of streams."""

import pytest

from kedge.bench.networks import ways as module
from kedge.bench.networks.setting import NETWORKS, Setting
from kedge.bench.networks.ways import dividing, ways


def test_a_row_for_every_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, "lenet5", 10)
    setting = Setting("lenet5", 10, 1)
    data = setting.federation("cpu")
    monkeypatch.setattr(Setting, "federation", lambda self, device: data)
    made: list[int] = []
    monkeypatch.setattr(module, "captured_stack", lambda *data, participants, streams: made.append(streams))
    monkeypatch.setattr(module, "rounds_of", lambda task, engine: None)
    found = ways(setting, ["tf32", "bf16"], "cuda", False, (1, 2, 3, 10, 20))
    one = [("captured", 1), ("captured, 2 streams", 2), ("captured, 10 streams", 10)]
    assert [(way.how, way.streams) for way in found] == 2 * [*one, ("central, compiled", None)]
    assert [way.precision for way in found] == 4 * ["tf32"] + 4 * ["bf16"]
    for way in found:
        if way.streams:
            way.make()
    assert made == 2 * [1, 2, 10]


@pytest.mark.parametrize(
    ("device", "hows"),
    [("cpu", ["stacked", "central, compiled"]), ("cuda", ["captured", "central, compiled"])],
)
def test_an_engine_is_measured_with_every_number_of_clients(
    device: str, hows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting("standard-cnn", 1, 1)
    data = setting.federation("cpu")
    monkeypatch.setattr(Setting, "federation", lambda self, device: data)
    assert [way.how for way in ways(setting, ["fp32"], device, False)] == hows
    eager = [way.how for way in ways(setting, ["fp32"], device, True)]
    assert eager == ["plain loop", *dict.fromkeys(["stacked", *hows])]


def test_streams_split_the_rows_that_clients_are_padded_to() -> None:
    assert dividing((1, 2, 10), 1) == [1]
    assert dividing((1, 2, 7, 8), 7) == [1, 2, 8]
    assert dividing((3, 20), 10) == []
