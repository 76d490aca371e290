"""Experiments that a server refuses before it starts."""

import pytest

pytest.importorskip("flwr")

from tests.running.federation.test_introduction import DOCUMENT

from kedge.config.assemble import assemble
from kedge.config.experiment import resolve
from kedge.core.errors import RequestError
from kedge.running.federation.serve import check_federated
from kedge.running.recording.site_rules import check_rules


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"evaluation": {"all": True}}, "evaluation.all = false"),
        ({"measure": {"drift": True}}, r"\[measure\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_federation_does_not_have_is_refused(table: dict[str, object], message: str) -> None:
    check_federated(resolve(DOCUMENT))
    with pytest.raises(RequestError, match=message):
        check_federated(resolve({**DOCUMENT, **table}))


def test_a_rule_on_a_model_that_clients_do_not_receive_is_refused() -> None:
    for metric in ("distributed", "average"):
        rule = f"plateau(metric='{metric}.local.accuracy')"
        evaluation = {"local_test": 0.2}
        then = [{"method": "fedavg", "when": rule}]
        task = assemble(resolve({**DOCUMENT, "evaluation": evaluation, "then": then}))
        if metric == "distributed":
            check_rules(task)
            continue
        with pytest.raises(RequestError, match="clients evaluate the distributed model and their own"):
            check_rules(task)
