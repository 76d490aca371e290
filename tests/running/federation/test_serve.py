"""Experiments that a server refuses before it starts."""

import pytest
from tests.running.federation.test_introduction import DOCUMENT

from kedge.config.experiment import resolve
from kedge.core.errors import RequestError
from kedge.running.federation.serve import check_federated


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
