"""Layer-expansion (Jang and Choi, 2024): Vanilla and Anti scheduling: base units join round by round.

The head is the last unit, b_1…b_K are the units below it. Vanilla: b_k trains from round thaw[k] on; Anti:
b_{K−k+1} does. No unit is frozen again. Rounds are counted from 1. By default b_k trains if t ≥ t_k, as in
the paper's algorithm; with strict = true if t > t_k, as in its text, so that the phases of thaw = (0, 100,
200) have exactly 100 rounds. The schedule always opens the head. With fedbabu the head stays frozen, as in
the paper's text; with other methods it trains in every round.
"""

from dataclasses import dataclass

from kedge.core.errors import RequestError
from kedge.core.schedules import Clock, Mask, Schedule


@dataclass(frozen=True)
class Thaw:
    """The k-th base unit trains from round thaw[k] on, counted from 1; the head (the last unit) always does.

    Base units are counted from the input side, or from the head's side if `from_top`. A unit trains if
    round ≥ thaw[k], or if round > thaw[k] with `strict`.
    """

    thaw: tuple[int, ...]
    from_top: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.thaw or list(self.thaw) != sorted(self.thaw) or self.thaw[0] < 0:
            raise RequestError(
                f"thaw = {list(self.thaw)}: need one round per base unit, from 0 on, in ascending order."
            )

    def __call__(self, clock: Clock, units: int) -> Mask:
        if len(self.thaw) != units - 1:
            raise RequestError(
                f"thaw = {list(self.thaw)}: {len(self.thaw)} rounds, but the model has {units - 1} base "
                f"units ({units} units, the last of which is the head). Give one round per base unit."
            )
        round = clock.round + 1
        base = tuple(round > start if self.strict else round >= start for start in self.thaw)
        return (*(base[::-1] if self.from_top else base), True)


def vanilla(thaw: tuple[int, ...] = (0, 100, 200), strict: bool = False) -> Schedule:
    """Base units start to train one after another, from the input side; one entry of `thaw` for each."""
    return Thaw(thaw, from_top=False, strict=strict)


def anti(thaw: tuple[int, ...] = (0, 100, 200), strict: bool = False) -> Schedule:
    """Base units start to train one after another, from the head's side; one entry of `thaw` for each."""
    return Thaw(thaw, from_top=True, strict=strict)
