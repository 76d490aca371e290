"""The checks of MOON, FedTR and FedPVR, and of Proposition 1's rule for a switch."""

from dataclasses import replace
from functools import partial

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.feddyn import feddyn
from kedge.algorithms.fedntd import fedntd
from kedge.algorithms.fedprox import fedprox
from kedge.algorithms.fedpvr import fedpvr
from kedge.algorithms.fedtr import TrackedFeatures, fedtr
from kedge.algorithms.moon import Projected, moon
from kedge.algorithms.scaffold import scaffold
from kedge.audit.check import Entries
from kedge.audit.oracles import fedtr as oracle_fedtr
from kedge.audit.oracles import moon as oracle_moon
from kedge.audit.oracles import scaffold as oracle_scaffold
from kedge.audit.oracles import switching
from kedge.audit.references import reductions, sent_statistics
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import OnlyLast
from kedge.rules.proposition1 import Proposition1

UNCLIPPED = replace(reductions.LOCAL, clip=None)
DRIFT, ACCUMULATE = fedtr(0.0, 1.0), fedtr(0.0, 1.0, "accumulate")


def oracle_checks() -> Entries:
    """Comparisons with the specification's numbers and with closed forms."""
    by_h, by_clients = Proposition1(smooth=1), Proposition1(estimate="clients", smooth=1)
    rows: Entries = [
        ("moon", "mu 1", partial(oracle_moon.contrast, moon(1.0, projection=0), 1.0)),
        ("moon", "mu 5", partial(oracle_moon.contrast, moon(5.0, projection=0), 5.0)),
        (
            "moon",
            "zero and opposite features",
            partial(oracle_moon.extreme_features, moon(0.7, 0.08, 0), 0.7, 0.08),
        ),
        ("moon", "the previous model", partial(oracle_moon.previous_model, moon(1.0, projection=0))),
        ("fedtr(drift)", "two rounds", partial(oracle_fedtr.drift, DRIFT, oracle_fedtr.GRADIENT)),
        (
            "fedtr(drift)",
            "one client sends",
            partial(oracle_fedtr.one_participant, DRIFT, oracle_fedtr.GRADIENT),
        ),
        (
            "fedtr(drift)",
            "a gradient step on λ_G·G",
            partial(oracle_fedtr.drift_descends, fedtr(0.0, 0.3, drift_rate=0.2)),
        ),
        (
            "fedtr(drift)",
            "rate ½ sends what was received",
            partial(oracle_fedtr.half_rate_stalls, fedtr(0.0, drift_rate=0.5)),
        ),
        ("fedtr(proof)", "two rounds", partial(oracle_fedtr.drift, ACCUMULATE, oracle_fedtr.ACCUMULATE)),
        (
            "fedtr(proof)",
            "one client sends",
            partial(oracle_fedtr.one_participant, ACCUMULATE, oracle_fedtr.ACCUMULATE),
        ),
        ("fedtr(proof)", "the update is doubled", partial(oracle_fedtr.accumulate_doubles, ACCUMULATE)),
        ("fedtr", "features and drift, step by step", partial(oracle_fedtr.features_and_drift, fedtr())),
        ("fedtr(features)", "centroids", partial(oracle_fedtr.centroids, fedtr(strength_drift=0.0))),
        ("fedpvr", "two rounds", partial(oracle_scaffold.fedpvr, fedpvr())),
        ("proposition1", "C_t as ‖h‖²", partial(switching.proposition1, by_h)),
        ("proposition1", "C_t as the clients' spread", partial(switching.proposition1, by_clients)),
        ("proposition1", "the bound D_T", partial(switching.met_where_bound_rises, by_h)),
        ("proposition1", "estimates of C_t", partial(switching.estimates, by_h, feddyn(0.1))),
        ("proposition1", "estimates, α by data", partial(switching.estimates, by_h, feddyn(0.1, "data"))),
        (
            "proposition1",
            "the runner",
            partial(switching.runner_switches, by_h, feddyn(0.1), fedavg("uniform")),
        ),
    ]
    comparing: list[tuple[str, Algorithm, sent_statistics.Term]] = [
        ("fedntd", fedntd(0.7, 2.0), sent_statistics.fedntd_term),
        ("moon", moon(0.7, projection=0), sent_statistics.moon_term),
    ]
    for method, algorithm, term in comparing:
        agrees = partial(sent_statistics.agrees_with_plain_modules, algorithm, term)
        rows.append((method, "batch norm as sent, shared", partial(agrees, "shared")))
        rows.append((method, "batch norm as sent, local", partial(agrees, "local")))
    return rows


def reduction_checks() -> Entries:
    """Settings in which a method must equal another method."""
    same, drift = reductions.methods_agree, fedtr(0.0, 0.3, drift_rate=0.2)
    no_features = replace(drift, corrections=(TrackedFeatures(0.0), *drift.corrections))
    projected = replace(fedavg(), rebuild=Projected(4))
    no_rate, like_feddyn = fedtr(0.0, 0.3, drift_rate=0.0), fedtr(0.0, 0.05, "accumulate", weights="uniform")
    last_corrected, all_corrected = (
        replace(method, schedule=OnlyLast(2)) for method in (fedpvr(2), scaffold())
    )
    return [
        ("moon", "mu 0 is fedavg", partial(same, moon(0.0, projection=0), fedavg())),
        ("moon", "first round is fedavg", partial(same, moon(5.0, projection=0), fedavg(), 1)),
        ("moon(projection)", "mu 0 is fedavg", partial(same, moon(0.0, projection=4), projected)),
        ("moon(projection)", "first round is fedavg", partial(same, moon(5.0, projection=4), projected, 1)),
        ("fedtr", "strengths 0 are fedavg", partial(same, fedtr(0.0, 0.0), fedavg())),
        ("fedtr", "features of strength 0 are the drift alone", partial(same, no_features, drift)),
        ("fedtr", "first round is the drift alone", partial(same, fedtr(0.7, 0.3, drift_rate=0.2), drift, 1)),
        ("fedtr(features)", "first round is fedavg", partial(same, fedtr(0.7, 0.0), fedavg(), 1)),
        ("fedtr(drift)", "rate 0 is fedprox(2λ)", partial(same, no_rate, fedprox(0.6))),
        (
            "fedtr(proof)",
            "all clients, no clip: feddyn(2λ)",
            partial(same, like_feddyn, feddyn(0.1), local=UNCLIPPED),
        ),
        ("fedpvr", "first round is fedavg", partial(reductions.scaffold_first_round, fedpvr())),
        ("fedpvr", "other units frozen is scaffold", partial(same, last_corrected, all_corrected)),
        (
            "fedpvr",
            "first units are fedavg, last units scaffold",
            partial(oracle_scaffold.parts_match, fedpvr(), fedavg("uniform"), scaffold()),
        ),
    ]
