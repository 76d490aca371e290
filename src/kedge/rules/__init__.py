"""Rules that end a stage. RULES has their factories, whose arguments are the keys of a configuration."""

from collections.abc import Callable

from kedge.rules.plateau import Plateau, plateau
from kedge.rules.proposition1 import Proposition1, proposition1, threshold_of

__all__ = ["RULES", "Plateau", "Proposition1", "plateau", "proposition1", "threshold_of"]

RULES: dict[str, Callable[..., Proposition1 | Plateau]] = {
    "plateau": plateau,
    "proposition1": proposition1,
}
