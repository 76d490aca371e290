"""Oracle interaction_tensor of the specification: three models, six samples, two components each."""

from typing import Any

import torch

from kedge.audit.check import Entries
from kedge.audit.finding import Finding, Pair, compare_numbers
from kedge.audit.specification import ORACLES
from kedge.measure.features import Clusters, Interaction, interaction

GROUP = "features"
ORACLE: dict[str, Any] = ORACLES["interaction_tensor"]
EXPECTED: dict[str, Any] = ORACLE["expected"]


def oracle_interaction() -> Interaction:
    """The interaction of the oracle's models."""
    given = ORACLE["inputs"]
    features = [torch.tensor(v, dtype=torch.float64) for k, v in given.items() if k.startswith("Phi_")]
    return interaction(features, Clusters(given["K"], given["gamma_corr"], quantile=0.75))


def correlations() -> Finding:
    """|ρ| between all columns, and γ_data."""
    actual = oracle_interaction()
    expected, rho = EXPECTED["abs_rho"], actual.correlation.tolist()
    places = [(i, j) for i in range(len(expected)) for j in range(len(expected))]
    pairs = [Pair(f"|ρ| {i},{j}", expected[i][j], rho[i][j]) for i, j in places]
    above = float("nan") if actual.threshold is None else actual.threshold
    return compare_numbers([*pairs, Pair("γ_data", EXPECTED["gamma_data_value"], above)], 1e-9)


def clusters() -> Finding:
    """Labels, both counts of clusters, and the numbers of features that models share."""
    actual = oracle_interaction()
    labels = zip(EXPECTED["greedy_labels (model-major order)"], actual.labels.flatten().tolist(), strict=True)
    pairs = [Pair(f"label {n}", expected, label) for n, (expected, label) in enumerate(labels)]
    pairs += [
        Pair("clusters", EXPECTED["n_clusters_greedy"], actual.clusters),
        Pair("connected components", EXPECTED["n_clusters_connected_components"], actual.components),
        Pair("shared by 0 and 1", EXPECTED["features_shared_model0_model1"], actual.shared(0, 1)),
        Pair("shared by 0 and 2", EXPECTED["features_shared_model0_model2"], actual.shared(0, 2)),
    ]
    return compare_numbers(pairs, 0.0)


def tensor() -> Finding:
    """Ω: its shape, and its sums over the samples."""
    omega = oracle_interaction().tensor()
    sums, target = omega.sum(1).tolist(), EXPECTED["tensor_sum_over_data (model x cluster)"]
    shape = zip(EXPECTED["tensor_shape"], omega.shape, strict=True)
    pairs = [Pair(f"axis {n}", e, g) for n, (e, g) in enumerate(shape)]
    pairs += [Pair("sum", EXPECTED["tensor_sum"], int(omega.sum()))]
    pairs += [
        Pair(f"model {m}, cluster {f}", expected, actual)
        for m, row in enumerate(target)
        for f, (expected, actual) in enumerate(zip(row, sums[m], strict=True))
    ]
    return compare_numbers(pairs, 0.0)


def oracle_checks() -> Entries:
    """Comparisons of features with the specification's numbers."""
    return [
        (GROUP, "correlations of three models", correlations),
        (GROUP, "clusters of three models", clusters),
        (GROUP, "interaction tensor of three models", tensor),
    ]
