"""Every check of the audit, by method."""

from collections.abc import Callable
from functools import partial

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.algorithms.fedbug import bottom_up
from kedge.audit.bed import ORACLES
from kedge.audit.finding import Check, Finding, Kind
from kedge.audit.oracles import averaging as oracle_averaging
from kedge.audit.oracles import fedbug as oracle_fedbug
from kedge.audit.oracles import feddyn as oracle_feddyn
from kedge.audit.oracles import scaffold as oracle_scaffold
from kedge.audit.oracles.measurements import cost as oracle_cost
from kedge.audit.oracles.measurements import drift as oracle_drift
from kedge.audit.oracles.measurements import features as oracle_features
from kedge.audit.oracles.measurements import protocol as oracle_protocol
from kedge.audit.oracles.measurements import theory as oracle_linear
from kedge.audit.problems import perceptron
from kedge.audit.references import feature_objectives, gradients, objectives, reductions
from kedge.audit.references.resting import resting
from kedge.audit.registry import client_terms, feature_terms, personalization, server_rules
from kedge.audit.registry.every_method import property_checks
from kedge.audit.registry.methods import AUDITED
from kedge.core.schedules import all_units

FULL, PARTIAL = "full_participation_2_rounds", "partial_round1_client0_round2_client1"
SHARED = "protocol"  # what no single method owns
LAST = (SHARED, "drift", "features", "theory", "cost")  # rows of the audit that are no method
UNIFORM = fedavg("uniform")
# By the slot of a method's first correction, or by its name where it has none; else f alone.
OBJECTIVES: dict[str, objectives.Objective] = {
    "proximal": objectives.proximal,
    "dynamic": objectives.dynamic,
    "control": objectives.controlled,
    "drift": objectives.drifting,
    "decorrelation": objectives.decorrelated,
    "not-true": objectives.distilled,
    "contrast": feature_objectives.contrasted,
    "centroids": feature_objectives.tracked,
    "released-drift": feature_objectives.tracked,
    "fedrod": feature_objectives.balanced,
}


def oracles() -> list[Check]:
    """The specification's numbers."""
    averaging, dyn, bug = oracle_averaging, oracle_feddyn, oracle_fedbug
    rows: list[tuple[str, str, Callable[[], Finding]]] = [
        ("fedavg", "every local step", partial(averaging.trajectories, UNIFORM, "fedavg")),
        ("fedavg", "two rounds, uniform", partial(averaging.fedavg_uniform, UNIFORM)),
        (
            "fedavg",
            "weights by size",
            partial(averaging.first_round, fedavg(), "fedavg", "round1_size_weighted"),
        ),
        ("fedavg", "weight decay", partial(averaging.fedavg_weight_decay, UNIFORM)),
        ("fedavg", "clip, then weight decay", partial(averaging.fedavg_clip, UNIFORM)),
        ("fedprox", "every local step", partial(averaging.trajectories, fedprox(0.5), "fedprox")),
        (
            "fedprox",
            "uniform",
            partial(averaging.first_round, fedprox(0.5, "uniform"), "fedprox", "round1_uniform"),
        ),
        (
            "fedprox",
            "weights by size",
            partial(averaging.first_round, fedprox(0.5), "fedprox", "round1_size_weighted"),
        ),
        ("feddyn", "all clients", partial(dyn.feddyn, feddyn(0.1), FULL)),
        ("feddyn", "one client a round", partial(dyn.feddyn, feddyn(0.1), PARTIAL)),
        ("feddyn", "what the clip holds", partial(dyn.clip_order, feddyn(0.1))),
        ("feddyn", "then fedavg", partial(dyn.to_fedavg, feddyn(0.1), UNIFORM)),
        ("scaffold", "all clients", partial(oracle_scaffold.scaffold, scaffold(), FULL)),
        ("scaffold", "one client a round", partial(oracle_scaffold.scaffold, scaffold(), PARTIAL)),
        ("scaffold", "momentum", partial(oracle_scaffold.momentum, scaffold(allow_momentum=True))),
        (
            "fedbug+scaffold",
            "momentum",
            partial(oracle_scaffold.momentum, fedbug(scaffold(allow_momentum=True), 0.8)),
        ),
        ("fedbug", "schedule M=5,P=0.4,K=20", partial(bug.schedule_sequence, bottom_up(0.4))),
        ("fedbug", "exact ceiling M=5,P=0.7,K=250", partial(bug.schedule_trap, bottom_up(bug.TRAP[1]))),
        ("fedbug", "update bottom_up", partial(bug.update, fedbug(fedavg(), 1.0), "bottom_up_(s,p)")),
        ("fedbug", "update vanilla", partial(bug.update, fedavg(), "vanilla_(s,p)")),
        (SHARED, "learning-rate decay", oracle_averaging.lr_decay),
        (SHARED, "per-class dirichlet", oracle_protocol.dirichlet_cut),
    ]
    rows += client_terms.oracles() + server_rules.oracles()
    rows += feature_terms.oracles() + personalization.oracles()
    rows += oracle_linear.oracles()
    rows += oracle_drift.oracles() + oracle_features.oracles()
    rows += oracle_cost.oracles()
    rows += [
        (
            "fedbug",
            f"opening steps {case}",
            partial(bug.schedule_case, bottom_up(float(case.split(",")[1][2:])), case),
        )
        for case in ORACLES["fedbug_schedule"]["cases"]
    ]
    rows += [
        (SHARED, f"participation {case}", partial(oracle_protocol.participation, case))
        for case in ORACLES["bernoulli_participation"]["expected"]
    ]
    return [Check(method, name, "oracle", look) for method, name, look in rows]


def reduced() -> list[Check]:
    """Methods that must be another one."""
    one, step = reductions.one_client, reductions.one_step
    bases = {"fedavg": fedavg(), "fedprox": fedprox(0.1), "feddyn": feddyn(0.1), "scaffold": scaffold()}
    equal = (6, 6, 6)
    rows: list[tuple[str, str, Callable[[], Finding]]] = [
        ("fedprox", "mu 0 is fedavg", reductions.fedprox_without_mu),
        ("feddyn(data)", "equal sizes are feddyn", reductions.feddyn_of_equal_sizes),
        ("scaffold", "first round is fedavg", partial(reductions.scaffold_first_round, scaffold())),
        ("fedavg", "one client is torch.optim.SGD", partial(one, fedavg(), momentum=0.9)),
        (
            "fedprox",
            "one client is torch.optim.SGD and the term",
            partial(one, fedprox(0.3), momentum=0.9, mu=0.3),
        ),
        ("scaffold", "one client is torch.optim.SGD", partial(one, scaffold())),
        (
            "fedbug+fedavg",
            "one client is torch.optim.SGD",
            partial(one, fedbug(fedavg(), 0.8), momentum=0.9, percent=80),
        ),
        (
            "fedbug+fedprox",
            "one client is torch.optim.SGD",
            partial(one, fedbug(fedprox(0.3), 0.8), 0.9, 0.3, 80),
        ),
        ("fedavg", "one step is centralised", partial(step, fedavg())),
        ("fedprox", "one step is centralised", partial(step, fedprox(0.3))),
        ("fedbug+fedavg", "one step is centralised", partial(step, fedbug(fedavg()))),
        ("fedbug+fedprox", "one step is centralised", partial(step, fedbug(fedprox(0.3)))),
        ("scaffold", "one step is centralised", partial(step, scaffold(), equal)),
        ("fedbug+scaffold", "one step is centralised", partial(step, fedbug(scaffold()), equal)),
    ]
    rows += client_terms.reduced() + server_rules.reduced()
    rows += feature_terms.reduced() + personalization.reduced()
    rows += [
        (f"fedbug+{name}", "ratio 0 is the base", partial(reductions.fedbug_without_ratio, base))
        for name, base in bases.items()
    ]
    return [Check(method, name, "reduction", look) for method, name, look in rows]


def derived() -> list[Check]:
    """For every method: its gradient, where it comes to rest, and what any method must have."""
    checks: list[Check] = []

    def add(method: str, name: str, kind: Kind, look: Callable[[], Finding]) -> None:
        checks.append(Check(method, name, kind, look))

    for method, algorithm in AUDITED.items():
        slot = algorithm.corrections[0].name if algorithm.corrections else method
        objective = OBJECTIVES.get(slot, objectives.plain)
        opened = 2 if algorithm.schedule is not all_units else len(perceptron(algorithm).units)
        add(
            method,
            "closed form",
            "gradient",
            partial(gradients.local_gradient, algorithm, objective, opened),
        )
        checks += resting(method, algorithm)
        if slot == "control":
            corrected = ("t",) if method == "fedpvr" else ("s", "t")
            look = partial(oracle_scaffold.mean_gradient, algorithm, corrected)
            add(method, "c_i is the mean gradient", "gradient", look)
        checks += property_checks(method, algorithm)
    return checks
