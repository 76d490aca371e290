"""The checks of methods with a term in the client's objective, and of FedDyn's ablations."""

from functools import partial

from kedge.algorithms.fedavg import fedavg
from kedge.algorithms.feddc import feddc
from kedge.algorithms.feddecorr import feddecorr
from kedge.algorithms.feddyn_ablations import feddyn_no_h, feddyn_no_reg
from kedge.algorithms.fedntd import fedntd
from kedge.audit.check import Entries
from kedge.audit.oracles import client_terms as oracle_objectives
from kedge.audit.oracles import feddyn as oracle_feddyn
from kedge.audit.references import reductions

TAU_1, TAU_3 = "ntd_tau1", "ntd_tau3 (includes tau^2)"


def oracle_checks() -> Entries:
    """Comparisons with the specification's numbers."""
    ablation, terms, everybody = oracle_feddyn.feddyn, oracle_objectives, "full_participation_2_rounds"
    return [
        ("feddyn-no-reg", "all clients", partial(ablation, feddyn_no_reg(), everybody, "feddyn_wo_reg")),
        ("feddyn-no-h", "all clients", partial(ablation, feddyn_no_h(0.1), everybody, "feddyn_wo_h")),
        ("feddc", "all clients", partial(terms.feddc, feddc(0.1))),
        ("feddc", "one client a round", partial(terms.feddc_means, feddc(0.1))),
        ("feddecorr", "the term", partial(terms.feddecorr, feddecorr(1.0))),
        ("fedntd", "temperature 1", partial(terms.fedntd, fedntd(), TAU_1)),
        ("fedntd", "temperature 3", partial(terms.fedntd, fedntd(temperature=3.0), TAU_3)),
    ]


def reduction_checks() -> Entries:
    """Settings in which a method must equal another method."""
    return [
        ("feddecorr", "beta 0 is fedavg", partial(reductions.methods_agree, feddecorr(0.0), fedavg())),
        ("fedntd", "beta 0 is fedavg", partial(reductions.methods_agree, fedntd(0.0), fedavg())),
    ]
