"""Suggestions of the closest valid name in error messages."""

from kedge.core.errors import nearest


def test_nearest_suggests_a_close_name_or_nothing() -> None:
    assert nearest("cifar-10", ["mnist", "cifar10"]) == " Did you mean 'cifar10'?"
    assert nearest("zebra", ["mnist", "cifar10"]) == ""
