import numpy as np
import torch

from kedge.data.facts import facts


def test_facts_count_samples_and_classes_per_client() -> None:
    labels = np.array([0, 0, 1, 2, 2, 2])
    found = facts(labels, [np.array([0, 3]), np.array([1, 2, 4, 5])], classes=4)
    assert set(found) == {"examples", "relative_size", "class_counts"}
    assert all(value.dtype == torch.float64 for value in found.values())
    assert found["examples"].tolist() == [2, 4]
    torch.testing.assert_close(found["relative_size"], torch.tensor([2 / 3, 4 / 3], dtype=torch.float64))
    assert found["class_counts"].tolist() == [[1, 0, 1, 0], [1, 1, 2, 0]]


def test_equal_clients_have_relative_size_one() -> None:
    found = facts(
        np.zeros(6, dtype=np.int64), [np.array([0, 1]), np.array([2, 3]), np.array([4, 5])], classes=1
    )
    assert found["relative_size"].tolist() == [1, 1, 1]
