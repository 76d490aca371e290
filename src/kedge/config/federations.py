"""Make the federation of an experiment, its dataset split among clients, and the record of the split."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kedge.config.experiment import Experiment, options_of
from kedge.config.factories import factory_of
from kedge.config.schema import parameters
from kedge.core.errors import RequestError, nearest
from kedge.data.dataset import Source, normalized
from kedge.data.datasets import BUILT_IN, load
from kedge.data.federation import Federation, federate
from kedge.data.local_tests import partitioned_labels
from kedge.data.partitions.partition import PARTITIONS, Saved
from kedge.data.partitions.saved import PartitionRecord, inputs_checksum, partition_record

OWN_DATA = ("digits", "synthetic")  # datasets that kedge contains or generates


def federation_of(experiment: Experiment) -> Federation:
    """The dataset of an experiment, split among clients."""
    source, seed, evaluation = source_of(experiment), experiment.seed, experiment.evaluation
    name = experiment.partition["name"]
    partition = factory_of("partition", name)(**options_of(experiment.partition))
    if isinstance(partition, Saved):
        federation = partition.federation(
            source, experiment.data["name"], evaluation.local, evaluation.local_test
        )
    else:
        keys = natural_keys(source, experiment) if name == "natural" else None
        labels = partitioned_labels(source, evaluation.local)
        clients = partition(labels, seed, keys)
        if name not in PARTITIONS:
            clients = checked_indices(name, clients, len(labels))
        federation = federate(source, clients, evaluation.local_test, seed, evaluation.local)
    experiment.participation.count(len(federation.clients))
    return federation


def checked_indices(name: str, clients: Any, count: int) -> list[NDArray[np.int64]]:
    """`clients`, the indices that a user's own partition returned, as arrays of int64.

    Raise unless each client has at least one of the `count` samples, and no sample occurs twice.
    """
    rule = f"partition.name = {name!r}: return an array of indices from 0 to {count - 1} for each client"
    try:
        indices = [np.asarray(samples) for samples in clients]
    except (TypeError, ValueError):
        raise RequestError(f"{rule}; it returned a {type(clients).__name__}.") from None
    for number, samples in enumerate(indices):
        if samples.ndim != 1 or samples.dtype.kind not in "iu" or not len(samples):
            raise RequestError(f"{rule}; client {number} got {samples.dtype} of shape {samples.shape}.")
        if samples.min() < 0 or samples.max() >= count:
            raise RequestError(f"{rule}; client {number} got {samples.min()} to {samples.max()}.")
    all_samples = np.concatenate(indices) if indices else np.empty(0, np.int64)
    if len(all_samples) == 0 or len(np.unique(all_samples)) != len(all_samples):
        mistake = "a sample occurs twice" if len(all_samples) else "it returned no client"
        raise RequestError(f"{rule}; {mistake}.")
    return [samples.astype(np.int64) for samples in indices]


def source_of(experiment: Experiment) -> Source:
    """The dataset, loaded."""
    options = options_of(experiment.data)
    normalize = options.pop("normalize")
    return normalized(load(experiment.data["name"], **options), normalize)


def natural_keys(source: Source, experiment: Experiment) -> NDArray[Any] | None:
    """The key of every sample that the partition `natural` splits by; None if the dataset has no keys."""
    name, keys = experiment.partition["key"], source.keys
    if name is None and len(keys) > 1:
        raise RequestError(
            f"partition natural: {source.name} has several keys: {', '.join(keys)}. Name one: partition.key."
        )
    if name is not None and name not in keys:
        raise RequestError(
            f"partition.key = {name!r}: {source.name} has no such key.{nearest(name, keys)} "
            f"It has: {', '.join(keys) or 'none'}."
        )
    name = name or next(iter(keys), None)
    if name is None or experiment.evaluation.local != "merged":
        return keys[name] if name else None
    if name not in source.test_keys:
        raise RequestError(
            f"partition natural with evaluation.local = 'merged': {source.name} has its key {name!r} for "
            "training samples only, so the test part cannot be split by it. "
            "Use evaluation.local = 'split' or 'matched'."
        )
    return np.concatenate([keys[name], source.test_keys[name]])


def partition_record_of(experiment: Experiment, federation: Federation) -> PartitionRecord:
    """The record of the samples of each client."""
    evaluation, name = experiment.evaluation, experiment.data["name"]
    inputs = "" if name in OWN_DATA else inputs_checksum(federation)
    return partition_record(federation, name, evaluation.local, evaluation.local_test, inputs)


def without_checksums(document: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with data.verify = false if it has no data.verify, as version 0.1 read it."""
    data = document.get("data")
    if not isinstance(data, Mapping) or "verify" in data:
        return dict(document)
    loader = BUILT_IN.get(str(data.get("name")))
    if loader is None or "verify" not in parameters(loader):
        return dict(document)
    return {**document, "data": {**data, "verify": False}}
