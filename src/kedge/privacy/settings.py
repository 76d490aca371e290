"""Privacy: the table [privacy] of a configuration. A run without `clip` and `noise` is not private."""

from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Annotated

from pydantic import Field

from kedge.core.errors import RequestError
from kedge.core.ranges import checked

COUNT_SHARE = 20  # the default noise of the count is the expected number of clients over this (Andrew et al.)


@checked(prefix="privacy.")
@dataclass(frozen=True)
class Privacy:
    """Client-level differential privacy: the bound on one client's delta, and the noise on the sum."""

    clip: Annotated[float, Field(gt=0, lt=inf)] | None = None  # largest L2 norm of a client's whole delta
    # Standard deviation of the noise on the sum of deltas, divided by the clip; 0: no noise, ε is infinite.
    noise: Annotated[float, Field(ge=0, lt=inf)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5  # δ, for which the history has ε
    adaptive: bool = False  # the clip follows a quantile of the clients' norms (Andrew et al., 2021)
    quantile: Annotated[float, Field(ge=0, le=1)] = 0.5
    clip_rate: Annotated[float, Field(gt=0, lt=inf)] = 0.2  # η_C, the learning rate of the clip
    # Standard deviation of the noise on the number of clients below the clip; None: kedge chooses it.
    count_noise: Annotated[float, Field(gt=0, lt=inf)] | None = None

    def __post_init__(self) -> None:
        missing = [key for key in ("clip", "noise") if getattr(self, key) is None]
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if missing and given:
            raise RequestError(
                f"privacy.{given[0]} = {getattr(self, given[0])}: a private run needs privacy.clip and "
                f"privacy.noise; {' and '.join(f'privacy.{key}' for key in missing)} is missing. Give both, "
                "for instance clip = 1.0 and noise = 1.0, or remove the table [privacy]."
            )

    @property
    def active(self) -> bool:
        """Whether the run is private."""
        return self.clip is not None

    def count_deviation(self, expected: float) -> float:
        """Standard deviation of the noise on the count, with `expected` clients in a round.

        The default is a twentieth of `expected`, as in the paper, but at least `noise`: the deltas then need
        at most 2/√3 times the noise that they need alone.
        """
        if not self.noise:
            return 0.0
        return self.count_noise or max(expected / COUNT_SHARE, self.noise)

    def sum_multiplier(self, expected: float) -> float:
        """Standard deviation of the noise on the sum of the deltas, divided by the clip.

        With an adaptive clip a round releases the sum and a count, whose client terms are ±1/2. Together they
        are one Gaussian mechanism with the multiplier z = `noise` if the sum has (z⁻² − (2σ_b)⁻²)^(−1/2).
        """
        if not self.noise or not self.adaptive:
            return self.noise or 0.0
        count = 2 * self.count_deviation(expected)
        if count <= self.noise or not isfinite(count):
            raise RequestError(
                f"privacy.count_noise = {self.count_noise}: too small for privacy.noise = {self.noise}, "
                f"because the count alone would use all of a round's privacy. Give more than "
                f"{self.noise / 2:g}, or leave it out."
            )
        multiplier: float = (self.noise**-2 - count**-2) ** -0.5
        return multiplier


OFF = Privacy()
