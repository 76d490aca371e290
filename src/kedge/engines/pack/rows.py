"""RowCounts: the few numbers of rows that a pack's stacks have, because each number needs programs.

With random participation, the number of clients differs from round to round. Stacks are padded to a number
that suffices for most rounds; a round with more clients is trained in halves.
"""

import sys
from collections.abc import Hashable, Sequence

from kedge.engines.stack.planner import Participants
from kedge.engines.stack.programs import bucket

FORESEEN = 75  # rounds whose participants determine the usual number of rows


class RowCounts:
    """The numbers of rows for which a pack has compiled programs, by the key of a stack (`StackKey`)."""

    def __init__(self, participants: Sequence[Participants], most: int = 0) -> None:
        """`participants` gives the clients of a later round of each run; `most` limits rows (0: no limit)."""
        self.participants = participants
        self.most = most or sys.maxsize
        self.compiled_sizes: dict[Hashable, list[int]] = {}
        self.usual: dict[tuple[int, ...], int] = {}  # results of `usual_rows`, by runs

    @property
    def limited(self) -> bool:
        """Whether the number of rows is limited: by the user, or because memory ran out."""
        return self.most < sys.maxsize

    def halve(self, rows: int) -> None:
        """Limit stacks to half of `rows`, after a stack of `rows` rows ran out of memory."""
        self.most = -(-rows // 2)
        self.compiled_sizes.clear()

    def limit(self, key: Hashable, runs: Sequence[int]) -> int:
        """The maximum number of rows that these runs may have in one stack."""
        sizes = self.compiled_sizes.setdefault(key, [])
        usual = self.usual_rows(runs)
        if max(sizes, default=0) < usual <= self.most:
            sizes.append(usual)
        return min(self.most, max(sizes, default=self.most)) if usual else self.most

    def padded(self, key: Hashable, runs: Sequence[int], rows: int) -> int:
        """The number of rows to which a stack with `rows` rows of these runs is padded."""
        sizes = self.compiled_sizes.setdefault(key, [])
        most = min(self.most, 3 * rows + 8)  # with more padding than this, a new program is faster
        fitting = [size for size in sizes if rows <= size <= most]
        if not fitting:
            usual = self.usual_rows(runs)
            fitting = [usual if rows <= usual <= most else bucket(rows)]
            sizes += fitting
        return min(fitting)

    def usual_rows(self, runs: Sequence[int]) -> int:
        """The number of rows that suffices for 24 of 25 rounds; 0 if later rounds are not known."""
        if tuple(runs) not in self.usual:
            totals = sorted(
                sum(len(self.participants[run](round)) for run in runs) for round in range(FORESEEN)
            )
            enough = totals[-1 - FORESEEN // 25]
            self.usual[tuple(runs)] = enough if enough == totals[-1] else -(-enough // 4) * 4
        return self.usual[tuple(runs)]
