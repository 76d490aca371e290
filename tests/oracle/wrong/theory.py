"""Wrong variants of the linear laboratory."""

from functools import partial

from tests.oracle.wrong.variant import Checks
from torch import Tensor

from kedge.audit.oracles.measurements import theory as oracle
from kedge.measure.theory.contraction import mean_cosine, paper_minimum, paper_ratio, predicted_ratio
from kedge.measure.theory.linear import (
    ADDITIVE,
    MULTIPLICATIVE,
    Network,
    Point,
    Training,
    product_minimum,
)

APPENDIX = "additive_bias (appendix model)"
PRINTED = MULTIPLICATIVE._replace(minimum=paper_minimum)
HALF = MULTIPLICATIVE._replace(slopes=lambda n, v: (v / 2, n / 2))


def across(network: Network, point: Point, training: Training) -> Tensor:
    """The angle to the axis of n instead of v."""
    return predicted_ratio(network, point, training) + (1 - 2 * mean_cosine(network, point)) / 2


def slow(network: Network, point: Point, training: Training) -> Tensor:
    """η for 2η, also with the true gradient."""
    return predicted_ratio(network, point, training._replace(gradient=1))


WRONG: Checks = {
    "the minimum as printed": partial(oracle.flow, PRINTED),
    "the true minimum as if printed": partial(oracle.flow_as_printed, product_minimum),
    "the additive network for the other": partial(oracle.flow, ADDITIVE),
    "another gradient": partial(oracle.descent, HALF, 2),
    "another gradient, as printed": partial(oracle.descent, HALF, 1),
    "the angle with the other axis": partial(oracle.near_minimum, MULTIPLICATIVE, across),
    "η for 2η": partial(oracle.near_minimum, MULTIPLICATIVE, slow),
    "two clients' r for m": partial(oracle.many_clients, MULTIPLICATIVE, "multiplicative", paper_ratio),
    "two clients' r for m, additive": partial(oracle.many_clients, ADDITIVE, APPENDIX, paper_ratio),
    "the other network": partial(oracle.many_clients, MULTIPLICATIVE, APPENDIX, predicted_ratio),
    "a pair of the other network": partial(oracle.additive_pair, MULTIPLICATIVE),
}

HARMLESS: Checks = {}
