"""Messages keep every value and every bit, and a damaged message is refused with a reason."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from kedge.engines.flower.flwr_private import (
    Array,
    ArrayRecord,
    ConfigRecord,
    RecordDict,
    get_all_nested_objects,
    inflate_object_from_contents,
)
from kedge.engines.flower.messages import DTYPES, STORAGE, Facts, MessageError, from_record, to_record

TINY = 5e-324  # the smallest float64


def tensors() -> dict[str, Tensor]:
    numbers = torch.tensor([[0.0, -0.0, 1 / 3], [TINY, 1e308, -2.5]], dtype=torch.float64)
    by_dtype = {f"a/{name}": numbers.abs().clamp(max=100).to(dtype) for name, dtype in DTYPES.items()}
    shapes = {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 3), "turned": numbers.T, "exact": numbers}
    return by_dtype | {f"b/{name}": v for name, v in shapes.items()}


def test_a_message_keeps_names_shapes_dtypes_and_bits() -> None:
    facts: Facts = {
        "round": 3,
        "loss": 1 / 3,
        "lost": False,
        "names": ["a", "b"],
        "none": list[str](),
        "text": "ä",
    }
    record = to_record("train", facts, tensors())
    parts = {name: part.deflate() for name, part in get_all_nested_objects(record).items()}
    arrived = inflate_object_from_contents(record.object_id, parts)
    assert isinstance(arrived, RecordDict)
    content = from_record(arrived)
    assert content.kind == "train"
    assert {k: content.facts[k] for k in facts} == facts
    assert content.tensors.keys() == tensors().keys()
    for path, v in tensors().items():
        found = content.tensors[path]
        assert (found.dtype, found.shape) == (v.dtype, v.shape), path
        assert bits(found).equal(bits(v)), path


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_the_arrays_have_exactly_the_bytes_of_the_tensors() -> None:
    record = to_record("x", {}, tensors())
    arrays = record["tensors"]
    assert isinstance(arrays, ArrayRecord)
    size = sum(v.numel() * v.element_size() for v in tensors().values())
    assert sum(len(array.data) for array in arrays.values()) == size == from_record(record).nbytes


def array(
    dtype: str = "float32", shape: tuple[int, ...] = (2,), stype: str = STORAGE, size: int = 8
) -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=bytes(size))


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (array(size=7), "7 bytes for float32"),
        (array(shape=(-2,)), "of shape"),
        (array(dtype="object"), "dtype 'object'"),
        (array(stype="numpy.ndarray"), "storage"),
    ],
)
def test_a_damaged_array_is_refused(damaged: Array, reason: str) -> None:
    record = RecordDict({"facts": ConfigRecord({"kind": "x"}), "tensors": ArrayRecord({"w": damaged})})
    with pytest.raises(MessageError, match=reason):
        from_record(record)


def test_a_message_without_facts_or_kind_is_refused() -> None:
    with pytest.raises(MessageError, match="not facts and tensors"):
        from_record(RecordDict({}))
    with pytest.raises(MessageError, match="no kind"):
        from_record(RecordDict({"facts": ConfigRecord({}), "tensors": ArrayRecord({})}))


@pytest.mark.parametrize("value", [-1, True, 1.0, "1", [1]])
def test_a_fact_of_another_type_is_refused(value: object) -> None:
    content = from_record(to_record("x", {"round": value}, {}))  # type: ignore[dict-item]  # on purpose
    with pytest.raises(MessageError, match="round"):
        content.integer("round")
