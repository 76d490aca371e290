"""The meaning of labels: names that differ are refused with the first label that differs."""

import pytest

pytest.importorskip("flwr")

from kedge.core.errors import DataError, RequestError
from kedge.engines.flower.messages import MessageError
from kedge.running.federation.labels import (
    LabelNames,
    Names,
    check_count,
    check_site_labels,
    label_difference,
    label_text,
    names_from_option,
)

PETS: Names = ("cat", "dog", "horse")


@pytest.mark.parametrize(
    ("server", "client", "sentence"),
    [
        (PETS, PETS, None),
        (PETS, (), None),
        ((), PETS, None),
        (PETS, ("cat", "cow", "horse"), "label 1 means 'dog' on the server and 'cow' on the client."),
        (
            PETS,
            ("dog", "cat", "horse"),
            "label 0 means 'cat' on the server and 'dog' on the client. The names",
        ),
        (PETS, PETS[:2], "the server has 3 names of labels, the client 2"),
    ],
)
def test_the_first_label_with_two_meanings_is_named(
    server: Names, client: Names, sentence: str | None
) -> None:
    found = label_difference(server, client)
    assert (found is None) == (sentence is None)
    assert (found or "").startswith(sentence or "")


def test_without_names_of_the_server_the_clients_are_compared_with_each_other() -> None:
    said: list[str] = []
    labels = LabelNames((), said.append)
    labels.check(1, ())
    labels.check(2, PETS)
    labels.check(0, PETS)
    labels.check(3, ())
    assert said == [
        "no names for labels are given (--labels): only clients that have names are compared",
        "the labels of client 2 count for all clients: cat, dog, horse",
        "client 3 has no names for its labels, so their meaning is not compared",
    ]
    with pytest.raises(MessageError, match=r"client 0: the labels differ: label 0.*those of client 2"):
        labels.check(0, ("dog", "cat", "horse"))


def test_a_site_finds_the_difference_itself_and_reads_how_to_mend_it() -> None:
    check_site_labels(PETS, PETS, None)
    with pytest.raises(
        DataError, match=r"--labels: the labels differ: label 0 .* Renumber y .*: cat, dog, horse"
    ):
        check_site_labels(PETS, ("dog", "cat", "horse"), None)
    assert "mean the same as on the server: cat, dog, horse" in label_text(PETS, PETS)
    assert "on the server 0, 1, ... mean cat, dog, horse" in label_text((), PETS)
    assert "the server has no names" in label_text(PETS, ())
    assert "neither you nor the server" in label_text((), ())


def test_names_in_an_option_are_checked() -> None:
    assert names_from_option(" cat, dog ,horse") == PETS
    assert names_from_option("") == ()
    for text in ("cat,,dog", "cat,cat", ","):
        with pytest.raises(RequestError, match=r"a different name for each label"):
            names_from_option(text)
    with pytest.raises(RequestError, match=r"--labels has 3 names .*; the experiment has 2 classes"):
        check_count(PETS, 2, "--labels")
