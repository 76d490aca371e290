"""The numbers of rows of a pack's stacks: only a few, because each number needs programs of its own.

With random participation, the number of clients differs from round to round. Stacks are padded to a number
that suffices for most rounds; a round with more clients is trained in halves.
"""

import sys
from collections.abc import Hashable, Sequence

from kedge.engines.stack.planner import Participants
from kedge.engines.stack.programs import bucket

FORESEEN = 75  # rounds whose participants determine the usual number of rows


class RowCounts:
    """The numbers of rows for which a pack has compiled programs, by kind of program."""

    def __init__(self, participants: Sequence[Participants], most: int = 0) -> None:
        """`participants` gives a run's clients of a later round; no stack has more rows than `most`."""
        self.participants = participants
        self.most = most or sys.maxsize
        self.known: dict[Hashable, list[int]] = {}
        self.usual: dict[tuple[int, ...], int] = {}  # `usual_rows` by runs

    @property
    def limited(self) -> bool:
        """Whether the rows of all runs do not fit into memory at once."""
        return self.most < sys.maxsize

    def halve(self, rows: int) -> None:
        """Limit stacks to half of `rows`, after a stack of `rows` rows ran out of memory."""
        self.most = -(-rows // 2)
        self.known.clear()

    def limit(self, kind: Hashable, runs: Sequence[int]) -> int:
        """The most rows that these runs may have in one stack."""
        known = self.known.setdefault(kind, [])
        usual = self.usual_rows(runs)
        if max(known, default=0) < usual <= self.most:
            known.append(usual)
        return min(self.most, max(known, default=self.most)) if usual else self.most

    def padded(self, kind: Hashable, runs: Sequence[int], rows: int) -> int:
        """The number of rows of a stack with room for `rows` rows of these runs."""
        known = self.known.setdefault(kind, [])
        most = min(self.most, 3 * rows + 8)  # a program for more rows is slower than it is worth
        fitting = [size for size in known if rows <= size <= most]
        if not fitting:
            usual = self.usual_rows(runs)
            fitting = [usual if rows <= usual <= most else bucket(rows)]
            known += fitting
        return min(fitting)

    def usual_rows(self, runs: Sequence[int]) -> int:
        """The rows that suffice for 24 of 25 rounds of these runs; 0 if future rounds are not known."""
        if tuple(runs) not in self.usual:
            totals = sorted(
                sum(len(self.participants[run](round)) for run in runs) for round in range(FORESEEN)
            )
            enough = totals[-1 - FORESEEN // 25]
            self.usual[tuple(runs)] = enough if enough == totals[-1] else -(-enough // 4) * 4
        return self.usual[tuple(runs)]
