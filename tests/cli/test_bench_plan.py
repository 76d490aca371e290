"""The options of kedge bench: defaults, and errors that name the option."""

import pytest

from kedge.cli.actions.bench_plan import (
    Options,
    check_streams,
    chosen_precisions,
    network_settings,
    plan_of,
    stream_counts,
)
from kedge.core.errors import RequestError


def test_defaults_by_device() -> None:
    settings = network_settings("cuda", "standard-cnn,resnet20", "1,10,100", 0)
    assert [one.clients for one in settings] == [1, 10, 100, 1, 10, 100]
    assert {one.steps for one in settings} == {100}
    assert chosen_precisions("cuda", "", "tf32", "bf16") == ["tf32", "bf16"]
    settings = network_settings("cpu", "standard-cnn", "1,10", 0)
    assert {one.steps for one in settings} == {1}
    assert chosen_precisions("cpu", "", "tf32", "bf16") == ["fp32"]


@pytest.mark.parametrize(
    ("networks", "clients", "precisions", "steps", "said"),
    [
        ("standart-cnn", "1", "", 0, "Did you mean 'standard-cnn'"),
        ("standard-cnn", "0", "", 0, "--clients 0"),
        ("standard-cnn", "ten", "", 0, "--clients ten"),
        ("standard-cnn", "1", "tf32", 0, "allowed here: fp64, fp32, bf16"),
        ("standard-cnn", "1", "", -1, "--steps -1"),
        ("standard-cnn", "", "", 0, "--clients : need whole numbers"),
        ("", "1", "", 0, "--networks : no such network"),
    ],
)
def test_wrong_requests(networks: str, clients: str, precisions: str, steps: int, said: str) -> None:
    options = Options("cpu", 1, True, networks, clients, precisions, steps, 2, "1", False, False)
    with pytest.raises(RequestError, match=said):
        plan_of(["networks"], options)


def test_stream_counts() -> None:
    assert stream_counts("cuda", "10, 2,1,2") == [1, 2, 10]
    assert stream_counts("cpu", "1") == [1]
    check_streams([3, 5], [1, 10])
    check_streams([1], [1])


@pytest.mark.parametrize(
    ("device", "streams", "said"),
    [
        ("cuda", "0", "--streams 0: need whole numbers of at least 1, as in 1,2,10"),
        ("cuda", "1,-2", "--streams -2"),
        ("cuda", "², 1", "--streams ²"),
        ("cuda", "", "--streams : need"),
        ("cpu", "1,2", "--streams 2: more than 1 needs a CUDA device"),
    ],
)
def test_wrong_stream_counts(device: str, streams: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        stream_counts(device, streams)


def test_streams_that_fit_no_round() -> None:
    with pytest.raises(RequestError, match="--streams 3,7: a round has 1 or 10 rows here"):
        check_streams([3, 7], [1, 10, 9])
