"""Defaults of fine-tuning, and FedROD's personal head."""

from kedge.algorithms import fedavg, fedbabu, fedper, fedrep, fedrod, lg_fedavg
from kedge.algorithms.fedrod import PERSONAL
from kedge.audit.problems import perceptron
from kedge.core.algorithm import Tune
from kedge.core.selections import everything


def test_fedbabu_tunes_all_of_a_copy_for_five_epochs_by_default() -> None:
    assert fedbabu().tune == Tune(5, "all")
    assert [one().tune for one in (fedavg, fedper, lg_fedavg, fedrep, fedrod)] == [None] * 5


def test_a_personal_head_is_in_no_unit_and_not_shared() -> None:
    model = perceptron(fedrod())
    assert set(model.extra) == set(PERSONAL)
    assert not fedrod().shared(model) & set(PERSONAL)
    assert fedrod().shared(model) == everything(perceptron())
