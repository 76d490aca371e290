"""A request to evaluate a model on clients' validation sets, and the scores; this module needs no Flower."""

from typing import NamedTuple


class ScoreRequest(NamedTuple):
    """A request to evaluate the model that a message brings."""

    round: int  # the model after this number of rounds is evaluated; 0: no evaluation
    own: bool = False  # whether clients have models of their own
    tuned: bool = False  # whether these are to be fine-tuned, too


class SiteScore(NamedTuple):
    """Totals of one model over one client's validation set."""

    samples: int
    correct: int
    loss: float  # summed over the samples


def name_of(model: str, kind: str) -> str:
    """The name of a metric, as in a history: `model` is one of `MODELS`, `kind` accuracy or loss."""
    return f"personal.local.{kind}.tuned" if model == "tuned" else f"{model}.local.{kind}"


MODELS = ("distributed", "personal", "tuned")
ClientScores = dict[str, SiteScore]  # by model
NOTHING = ScoreRequest(0)
