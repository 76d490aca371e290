"""Layer-expansion (Jang and Choi, 2024): Vanilla and Anti scheduling, base layers join round by round.

The head is the last unit, b_1…b_K the units below it. Vanilla: b_k trains from round thaw[k] on; Anti:
b_{K−k+1} does. Nothing freezes again. Rounds are counted from 1. The default is the algorithm's t ≥ t_k;
strict is the text's t > t_k, which makes the phases of thaw = (0, 100, 200) exactly 100 rounds long. The
head is the host's affair: over fedbabu it stays frozen, as in the paper's text; over a method that trains
it, it trains in every round.
"""

from kedge.core.schedules import Schedule, Thaw


def vanilla(thaw: tuple[int, ...] = (0, 100, 200), strict: bool = False) -> Schedule:
    """Base units thaw round by round from the input side; one entry of thaw per base unit."""
    return Thaw(thaw, from_top=False, strict=strict)


def anti(thaw: tuple[int, ...] = (0, 100, 200), strict: bool = False) -> Schedule:
    """Base units thaw round by round from the head's side; one entry of thaw per base unit."""
    return Thaw(thaw, from_top=True, strict=strict)
