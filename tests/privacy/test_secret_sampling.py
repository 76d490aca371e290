"""Secret Poisson sampling: each client by a draw of its own, from no seed."""

import numpy as np
import pytest

from kedge.core.sampling import Participation
from kedge.privacy.secret_sampling import secret_sample

CLIENTS, ROUNDS = 2000, 40


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_each_client_takes_part_with_the_given_probability_independently_of_the_others(share: float) -> None:
    participation = Participation("poisson", share=share)
    sizes = np.array([len(secret_sample(participation, CLIENTS)) for _ in range(ROUNDS)])
    variance = CLIENTS * share * (1 - share)
    assert abs(sizes.mean() - CLIENTS * share) < 5 * np.sqrt(variance / ROUNDS)
    assert variance / 4 < sizes.var() < 4 * variance  # 0 if the number of participants were fixed


def test_two_draws_differ_and_a_probability_of_one_takes_everyone() -> None:
    participation = Participation("poisson", share=0.5)
    assert secret_sample(participation, CLIENTS) != secret_sample(participation, CLIENTS)
    assert secret_sample(Participation("poisson"), 7) == list(range(7))
