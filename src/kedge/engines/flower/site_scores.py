"""Scores of models on the clients' own validation sets, as facts of messages.

A reply has totals over a client's validation set, never a value of a single sample, and only if the client
shares them.
"""

from collections.abc import Mapping

from kedge.engines.flower.messages import Content, Facts, MessageError
from kedge.engines.flower.score_request import MODELS, ClientScores, ScoreRequest, SiteScore

PREFIX = "score."


def request_facts(request: ScoreRequest) -> Facts:
    """A request as facts of a message."""
    return {"evaluated": request.round, "own": request.own, "tuned": request.tuned}


def score_request(content: Content) -> ScoreRequest:
    """The request in a message."""
    return ScoreRequest(content.integer("evaluated"), content.flag("own"), content.flag("tuned"))


def score_facts(scores: Mapping[str, SiteScore]) -> Facts:
    """Scores as facts of a reply."""
    return {f"{PREFIX}{model}": [float(v) for v in score] for model, score in scores.items()}


def scores_of(reply: Content) -> ClientScores:
    """The scores in a reply; raise MessageError if one is not possible."""
    found = {}
    for name in reply.facts:
        if not name.startswith(PREFIX):
            continue
        model, values = name.removeprefix(PREFIX), reply.numbers(name)
        if model not in MODELS:
            raise MessageError(f"its {name} is of no model that was evaluated")
        if len(values) != 3 or not is_possible(*values):
            raise MessageError(f"its {name} is {values}, not samples, correct samples and loss")
        found[model] = SiteScore(int(values[0]), int(values[1]), values[2])
    return found


def is_possible(samples: float, correct: float, loss: float) -> bool:
    """Whether these can be totals; a loss may be infinite or NaN, because a model may diverge."""
    return samples >= 1 and samples.is_integer() and correct in range(int(samples) + 1) and not loss < 0
