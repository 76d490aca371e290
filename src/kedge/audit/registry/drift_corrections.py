"""The checks of FedAvg, FedProx, FedDyn and SCAFFOLD, and of FedBug over them."""

from functools import partial

from kedge.algorithms import fedavg, fedbug, feddyn, fedprox, scaffold
from kedge.algorithms.fedbug import bottom_up
from kedge.audit.check import Entries
from kedge.audit.oracles import averaging
from kedge.audit.oracles import fedbug as oracle_fedbug
from kedge.audit.oracles import feddyn as oracle_feddyn
from kedge.audit.oracles import scaffold as oracle_scaffold
from kedge.audit.references import reductions

FULL, PARTIAL = "full_participation_2_rounds", "partial_round1_client0_round2_client1"  # keys of the oracles
UNIFORM = fedavg("uniform")


def oracle_checks() -> Entries:
    """Comparisons with the specification's numbers."""
    momentum = scaffold(allow_momentum=True)
    by_size = "round1_size_weighted"
    return [
        ("fedavg", "every local step", partial(averaging.local_steps, UNIFORM, "fedavg")),
        ("fedavg", "two rounds, uniform", partial(averaging.fedavg_uniform, UNIFORM)),
        ("fedavg", "weights by size", partial(averaging.first_round, fedavg(), "fedavg", by_size)),
        ("fedavg", "weight decay", partial(averaging.fedavg_weight_decay, UNIFORM)),
        ("fedavg", "clip, then weight decay", partial(averaging.fedavg_clip, UNIFORM)),
        ("fedprox", "every local step", partial(averaging.local_steps, fedprox(0.5), "fedprox")),
        (
            "fedprox",
            "uniform",
            partial(averaging.first_round, fedprox(0.5, "uniform"), "fedprox", "round1_uniform"),
        ),
        ("fedprox", "weights by size", partial(averaging.first_round, fedprox(0.5), "fedprox", by_size)),
        ("feddyn", "all clients", partial(oracle_feddyn.feddyn, feddyn(0.1), FULL)),
        ("feddyn", "one client a round", partial(oracle_feddyn.feddyn, feddyn(0.1), PARTIAL)),
        ("feddyn", "terms inside the clip", partial(oracle_feddyn.clip_order, feddyn(0.1))),
        ("feddyn", "then fedavg", partial(oracle_feddyn.to_fedavg, feddyn(0.1), UNIFORM)),
        ("scaffold", "all clients", partial(oracle_scaffold.scaffold, scaffold(), FULL)),
        ("scaffold", "one client a round", partial(oracle_scaffold.scaffold, scaffold(), PARTIAL)),
        ("scaffold", "momentum", partial(oracle_scaffold.momentum, momentum)),
        ("fedbug+scaffold", "momentum", partial(oracle_scaffold.momentum, fedbug(momentum, 0.8))),
        *fedbug_oracle_checks(),
    ]


def fedbug_oracle_checks() -> Entries:
    """Comparisons of FedBug's schedule and update with the specification's numbers."""
    oracle, rounding = oracle_fedbug, bottom_up(oracle_fedbug.ROUNDING_CASE[1])
    return [
        ("fedbug", "schedule M=5,P=0.4,K=20", partial(oracle.schedule_sequence, bottom_up(0.4))),
        ("fedbug", "exact ceiling M=5,P=0.7,K=250", partial(oracle.schedule_rounding, rounding)),
        ("fedbug", "update bottom_up", partial(oracle.update, fedbug(fedavg(), 1.0), "bottom_up_(s,p)")),
        ("fedbug", "update vanilla", partial(oracle.update, fedavg(), "vanilla_(s,p)")),
        *(
            ("fedbug", f"opening steps {case}", partial(oracle.schedule_case, bottom_up(ratio), case))
            for case, (_, ratio, _) in oracle.CASES.items()
        ),
    ]


def reduction_checks() -> Entries:
    """Settings in which a method must equal another method, or torch.optim.SGD."""
    one_client, one_step = reductions.one_client_is_sgd, reductions.one_step_is_central
    bug_avg, bug_prox = fedbug(fedavg(), 0.8), fedbug(fedprox(0.3), 0.8)
    bases = {"fedavg": fedavg(), "fedprox": fedprox(0.1), "feddyn": feddyn(0.1), "scaffold": scaffold()}
    equal, sgd, central = (6, 6, 6), "one client is torch.optim.SGD", "one step is central training"
    return [
        ("fedprox", "mu 0 is fedavg", reductions.fedprox_without_mu),
        ("feddyn(data)", "equal sizes are feddyn", reductions.feddyn_of_equal_sizes),
        ("scaffold", "first round is fedavg", partial(reductions.scaffold_first_round, scaffold())),
        ("fedavg", sgd, partial(one_client, fedavg(), momentum=0.9)),
        ("fedprox", f"{sgd} and the term", partial(one_client, fedprox(0.3), momentum=0.9, mu=0.3)),
        ("scaffold", sgd, partial(one_client, scaffold())),
        ("fedbug+fedavg", sgd, partial(one_client, bug_avg, momentum=0.9, percent=80)),
        ("fedbug+fedprox", sgd, partial(one_client, bug_prox, momentum=0.9, mu=0.3, percent=80)),
        ("fedavg", central, partial(one_step, fedavg())),
        ("fedprox", central, partial(one_step, fedprox(0.3))),
        ("fedbug+fedavg", central, partial(one_step, fedbug(fedavg()))),
        ("fedbug+fedprox", central, partial(one_step, fedbug(fedprox(0.3)))),
        ("scaffold", central, partial(one_step, scaffold(), equal)),
        ("fedbug+scaffold", central, partial(one_step, fedbug(scaffold()), equal)),
        *(
            (f"fedbug+{name}", "ratio 0 is the base", partial(reductions.fedbug_without_ratio, base))
            for name, base in bases.items()
        ),
    ]
