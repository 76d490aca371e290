"""The displays of a server: a live table, lines without a terminal, and events as JSON."""

import io
import json
import time
from typing import Any

import pytest

pytest.importorskip("flwr")

from rich.console import Console

from kedge.engines.flower.events import Events
from kedge.running.federation.board import MOST_ROWS, Board
from kedge.running.federation.displays import (
    JsonDisplay,
    LineDisplay,
    LiveTable,
    display_for,
    observer_of,
)
from kedge.running.federation.private_events import private_events, secret_say

LINE: dict[str, Any] = {
    "round": 1, "clients": [0, 1], "rejected": [{"client": 1, "reason": "not finite"}], "train.loss": 0.5,
    "distributed.global.accuracy": 0.75,
}  # fmt: skip


def play(events: Events, private: bool = False) -> None:
    """A round with three clients: one disconnects, and the update of another is left out."""
    events("listening", address="127.0.0.1:1", clients=3, rounds=2, joined=[], private=private)
    for client in (0, 1):
        events("connect", client=client, samples=1000 + client, again=False, evaluates=True, shares=True)
    events("round", round=1, clients=[0, 1], stage=0)
    for client in (0, 1):
        events("order", client=client, bytes=2_000_000, message="train")
    events("reply", client=0, bytes=1_000)
    events("disconnect", client=1)
    events("seen", times={0: time.time() - 7})
    events("rejected", client=1, reason="not finite")
    events("evaluation", client=0, evaluated=1, metrics={"distributed.local.accuracy": 0.625})


def shown(display: LiveTable) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(display.render())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_live_table_has_the_state_of_each_client() -> None:
    display = LiveTable("small: fedavg", 2)
    observer, events = observer_of(display)
    assert "before the first round" in shown(display)
    play(events)
    observer.line(LINE)
    title, head, *rows = [line.strip() for line in shown(display).splitlines()]
    assert title == (
        "small: fedavg  ·  127.0.0.1:1  ·  round 1 of 2  ·  1 of 3 clients connected  ·  "
        "accuracy 75.0 % after round 1"
    )
    names = ["client", "state", "round", "seen", "samples", "down", "up", "accuracy", "left", "out"]
    assert head.split() == names
    assert [" ".join(row.split()) for row in rows] == [
        "0 has answered 1 7 s ago 1,000 2.0 MB 1.0 kB 62.5 % 0",
        "1 disconnected 1 0 s ago 1,001 2.0 MB 0 bytes – 1",
        "2 not joined yet – – – 0 bytes 0 bytes – 0",
    ]


def test_a_client_that_evaluates_only_and_one_that_returns_have_their_states() -> None:
    board = Board()
    events = Events(board.event)
    play(events)
    events("order", client=0, bytes=10, message="evaluate")
    assert (board.rows[0].state, board.rows[0].down) == ("evaluates", 2_000_010)
    events("connect", client=1, samples=1001, again=True, evaluates=False, shares=False)
    assert (board.rows[1].state, board.rows[1].rejected, board.connected) == ("waits", 1, 2)


def test_a_resumed_server_shows_which_clients_have_joined_before() -> None:
    board = Board()
    Events(board.event)("listening", address="", clients=3, rounds=2, joined=[0, 2], private=False)
    assert [row.state for row in board.rows.values()] == ["not connected", "not joined yet", "not connected"]
    assert board.connected == 0


def test_the_table_of_a_private_run_shows_connections_and_no_participants() -> None:
    display = LiveTable("small: fedavg", 2, Console(file=io.StringIO()))
    observer, events = observer_of(display)
    play(private_events(events), private=True)
    assert "before the first round" in shown(display)
    observer.line({"round": 1})
    title, head, *rows = [line.strip() for line in shown(display).splitlines()]
    assert "round 1 of 2  ·  1 of 3 clients connected" in title
    assert head.split() == ["client", "state", "seen"]
    assert [" ".join(row.split()) for row in rows] == [
        "0 waits 7 s ago", "1 disconnected 0 s ago", "2 not joined yet –",
    ]  # fmt: skip


def test_a_table_of_many_clients_shows_those_that_were_seen_last() -> None:
    board = Board()
    events = Events(board.event)
    events("listening", address="", clients=100, rounds=1, joined=[], private=False)
    events("connect", client=77, samples=5, again=False, evaluates=False, shares=False)
    table = board.table(time.time())
    assert table.row_count == MOST_ROWS + 1
    assert "77" in list(table.columns[0].cells)
    assert list(table.columns[1].cells)[-1] == "and 70 more"


def test_events_are_lines_of_json_with_time_and_round() -> None:
    stream = io.StringIO()
    with JsonDisplay(stream) as display:
        observer, events = observer_of(display)
        play(events)
        observer.say("a message")
        observer.line(LINE)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds == [
        "listening", "connect", "connect", "round", "order", "order", "reply", "disconnect", "rejected",
        "evaluation", "message", "history",
    ]  # fmt: skip
    assert all(line["time"].endswith("+00:00") for line in lines)
    assert [line.get("round") for line in lines[2:5]] == [None, 1, 1]
    assert lines[8] == {**lines[8], "client": 1, "reason": "not finite", "round": 1}
    assert (lines[-2]["text"], lines[-1]["line"]) == ("a message", LINE)


@pytest.mark.parametrize(("quiet", "expected"), [(False, [1, 5]), (True, [])])
def test_without_a_terminal_some_rounds_are_lines(
    quiet: bool, expected: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    with LineDisplay(5, quiet) as display:
        for round in range(1, 6):
            display.line({**LINE, "round": round})
    printed = capsys.readouterr().err.splitlines()
    assert printed == [f"round {n} of 5: 1 update, training loss 0.5000, accuracy 75.0 %" for n in expected]


def test_the_events_and_lines_of_a_private_run_name_no_participants(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with JsonDisplay() as display, LineDisplay(5, False) as terminal:
        for shown_by in (display, terminal):
            observer, events = observer_of(shown_by)
            play(private_events(events), private=True)
            secret_say(private_events(events))("client 1 counts as zero")
            observer.line({"round": 1, "distributed.global.accuracy": 0.5})
    *lines, secret, summary = capsys.readouterr().err.splitlines()
    kinds = [json.loads(line)["event"] for line in lines]
    assert kinds == ["listening", "connect", "connect", "disconnect", "history"]
    assert json.loads(lines[3]).keys() == {"time", "event", "client"}
    assert (secret, summary) == ("client 1 counts as zero", "round 1 of 5, accuracy 50.0 %")


def test_a_message_that_quotes_a_client_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    LineDisplay(1, False).say("a client was refused: \x1b[2J\rclient 0 is connected")
    assert capsys.readouterr().err == "a client was refused: ?[2J?client 0 is connected\n"


def test_the_display_follows_the_options() -> None:
    assert isinstance(display_for("x", 1, quiet=False, as_json=True), JsonDisplay)
    assert isinstance(display_for("x", 1, quiet=True, as_json=False), LineDisplay)
    assert isinstance(display_for("x", 1, quiet=False, as_json=False), LineDisplay)  # no terminal here
