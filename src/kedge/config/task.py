"""Task: everything that determines the numbers of a run, as objects."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kedge.core.algorithm import Stage, Tune
from kedge.core.errors import RequestError
from kedge.core.model import Model
from kedge.core.sampling import Participation
from kedge.data.federation import Federation
from kedge.measure.settings import Measure
from kedge.nn.precision import Precision
from kedge.privacy.settings import OFF, Privacy

History = list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Task:
    """Data, model, stages and settings of a run."""

    stages: Sequence[Stage]
    model: Model
    federation: Federation
    participation: Participation = Participation()
    seed: int = 0
    evaluate_every: int = 1
    on_divergence: Literal["stop", "drop"] = "stop"
    tune: Tune | Literal["method", "off"] = "method"  # fine-tuning before personal models are measured
    tune_every: int = 0  # 0: after the last round
    headline: Literal["all", "seen"] = "all"  # whether clients never sampled count in personal means
    measure: Measure = Measure()  # further measurements; diagnostics.py adds their corrections to the stages
    precision: Precision = "fp32"  # of the model's computation
    privacy: Privacy = OFF
    noise_source: Literal["seed", "system"] = "seed"  # of a private run's noise and of its Poisson draws

    def __post_init__(self) -> None:
        if self.tune_every % self.evaluate_every:
            raise RequestError(
                f"tune_every = {self.tune_every}: need a multiple of {self.evaluate_every}, the number of "
                "rounds between evaluations, or 0 (after the last round). Fine-tuned models are measured in "
                "evaluations."
            )

    @property
    def rounds(self) -> int:
        """Rounds of all stages together; the rounds that a stage does not use are added to the next."""
        return sum(stage.rounds for stage in self.stages)

    def participants(self, round: int) -> list[int]:
        """The clients of a round."""
        return self.participation.sample(len(self.federation.clients), self.seed, round)

    def end(self, stage: int) -> int:
        """The round after which this stage ends at the latest."""
        return sum(earlier.rounds for earlier in self.stages[: stage + 1])
