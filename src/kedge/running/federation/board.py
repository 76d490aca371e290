"""The state of a federation's clients, collected from events, as a table."""

import time
from dataclasses import dataclass, replace
from typing import Any

from rich.filesize import decimal
from rich.table import Table

MOST_ROWS = 30
ABSENT = ("not joined yet", "not connected", "disconnected")
PRIVATE_COLUMNS = ("client", "state", "seen")  # the others would show the participants
COLUMNS = ("client", "state", "round", "seen", "samples", "down", "up", "accuracy", "left out")
STATES = {
    "connect": "waits",
    "disconnect": "disconnected",
    "order": "trains",
    "reply": "has answered",
}


@dataclass(frozen=True)
class Row:
    """The state of one client."""

    state: str = "not joined yet"
    round: int = 0  # its last round
    seen: float | None = None  # when the server last received a sign of life, in seconds since 1970
    samples: int | None = None
    down: int = 0  # bytes of arrays sent to it, since the server's start
    up: int = 0
    accuracy: float | None = None  # of the server's model on its validation set, if it shares it
    rejected: int = 0  # its updates that were left out


class Board:
    """The rows of all clients; `event` is called by the thread of the training."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.round = 0
        self.private = False

    def event(self, kind: str, facts: dict[str, Any]) -> None:
        """Change the rows by an event."""
        self.round = facts.get("round", self.round)
        if kind == "listening":
            self.rows = {client: Row() for client in range(facts["clients"])}
            for client in facts["joined"]:  # before the server's start
                self.change(client, state="not connected")
            self.private = facts["private"]
        if kind == "seen":
            for client, moment in facts["times"].items():
                self.change(client, seen=moment)
        if "client" in facts:
            self.change(facts["client"], **self.changes(kind, facts))

    def change(self, client: int, **values: Any) -> None:
        """Change the values of a row."""
        self.rows[client] = replace(self.rows.get(client, Row()), **values)

    def changes(self, kind: str, facts: dict[str, Any]) -> dict[str, Any]:
        """The values that an event of a client changes."""
        row = self.rows.get(facts["client"], Row())
        values: dict[str, Any] = {"state": STATES[kind]} if kind in STATES else {}
        if kind == "connect":
            values |= {"samples": facts["samples"], "seen": time.time()}
        if kind == "order":
            values |= {"down": row.down + facts["bytes"], "round": self.round}
            values |= {"state": "evaluates"} if facts["message"] == "evaluate" else {}
        if kind == "reply":
            values |= {"up": row.up + facts["bytes"], "seen": time.time()}
        if kind == "evaluation":
            values["accuracy"] = facts["metrics"].get("distributed.local.accuracy")
        if kind == "rejected":
            values["rejected"] = row.rejected + 1
        return values

    @property
    def connected(self) -> int:
        """The number of connected clients."""
        return sum(row.state not in ABSENT for row in self.rows.values())

    def table(self, now: float) -> Table:
        """The rows as a table, at most `MOST_ROWS`: the clients that were seen last."""
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        columns = PRIVATE_COLUMNS if self.private else COLUMNS
        for name in columns:
            table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
        shown = sorted(self.rows, key=lambda client: -(self.rows[client].seen or 0))[:MOST_ROWS]
        for client in sorted(shown):
            values = cells(client, self.rows[client], now)
            table.add_row(*(values[name] for name in columns))
        if len(self.rows) > MOST_ROWS:
            table.add_row("", f"and {len(self.rows) - MOST_ROWS} more")
        return table


def cells(client: int, row: Row, now: float) -> dict[str, str]:
    """The texts of a row, by the names of the columns."""
    return {
        "client": str(client),
        "state": row.state,
        "round": str(row.round) if row.round else "–",
        "seen": "–" if row.seen is None else f"{max(0, round(now - row.seen))} s ago",
        "samples": "–" if row.samples is None else f"{row.samples:,}",
        "down": decimal(row.down),
        "up": decimal(row.up),
        "accuracy": "–" if row.accuracy is None else f"{100 * row.accuracy:.1f} %",
        "left out": str(row.rejected),
    }
