"""The checks of methods with a server rule, and of the schedules that FedBug's paper compares with."""

from dataclasses import replace
from functools import partial

from kedge.algorithms import fedavg, fedbug
from kedge.algorithms.fedadam import fedadam
from kedge.algorithms.fedavgm import fedavgm
from kedge.algorithms.fedexp import fedexp
from kedge.algorithms.fednova import fednova
from kedge.algorithms.fix_last import fix_last, fix_last_two
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.top_down import top_down
from kedge.audit.check import Entries
from kedge.audit.finding import Finding
from kedge.audit.oracles import fedbug as oracle_fedbug
from kedge.audit.oracles import schedules as oracle_schedules
from kedge.audit.oracles import server_rules as oracle_server
from kedge.audit.references import reductions
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Schedule

HEAVY_BALL = "heavy_ball m=beta*m+delta (Hsu et al., FedNTD and FedExP repos)"
EMA = "ema m=beta*m+(1-beta)*delta (FedDecorr, MOON, FedBug repos)"
FROM_TAU, FROM_ZERO = "v0=tau^2 (Reddi et al. Algorithm 2)", "v0=0 (FedDecorr repo form)"
PAPER = "eta_g_paper max(1, sum||d||^2/(2m(||dbar||^2+eps)))"
OFFICIAL = "eta_g_official_code (eps multiplied by m)"
FEDBUG_CODE = "eta_g_fedbug_code (no 1/2, len() bug makes eps=m)"


def momentum(algorithm: Algorithm, key: str) -> Finding:
    """Two rounds of FedAvgM against the oracle."""
    inputs = "server_deltas_round1_2 (mean client update)"
    return oracle_server.two_mean_updates(algorithm, "fedavgm", inputs, key)


def adam(algorithm: Algorithm, key: str) -> Finding:
    """Two rounds of FedAdam against the oracle."""
    return oracle_server.two_mean_updates(algorithm, "fedadam", "server_deltas", key)


def fedavg_under(schedule: Schedule) -> Algorithm:
    """FedAvg under `schedule`."""
    return replace(fedavg(), schedule=schedule)


def oracle_checks() -> Entries:
    """Comparisons with the specification's numbers."""
    server, schedules, update = oracle_server, oracle_schedules, oracle_fedbug.update
    return [
        ("fedavgm", "heavy ball", partial(momentum, fedavgm(0.9), HEAVY_BALL)),
        ("fedavgm", "exponential average", partial(momentum, fedavgm(0.9, "ema"), EMA)),
        ("fedadam", "v from tau²", partial(adam, fedadam(), FROM_TAU)),
        ("fedadam", "v from 0", partial(adam, fedadam(start="zero"), FROM_ZERO)),
        ("fedexp", "the paper's rule", partial(server.extrapolated, fedexp(), PAPER)),
        (
            "fedexp",
            "the authors' code",
            partial(server.extrapolated, fedexp(rule="official-code"), OFFICIAL),
        ),
        ("fedexp", "fedbug's code", partial(server.extrapolated, fedexp(rule="fedbug-code"), FEDBUG_CODE)),
        ("fedexp", "one participant", partial(server.one_participant, fedexp())),
        ("fednova", "unequal work", partial(server.unequal_work, fednova(), "w_next")),
        (
            "fedavg",
            "unequal work",
            partial(server.unequal_work, fedavg(), "fedavg_for_comparison"),
        ),
        ("fednova", "momentum", partial(server.momentum_steps, fednova())),
        ("top-down", "update top_down", partial(update, fedavg_under(top_down(1.0)), "top_down_(s,p)")),
        ("fix-last", "update fix_last", partial(update, fedavg_under(fix_last()), "fix_last_layer_(s,p)")),
        ("fix-last", "one unit of five", partial(schedules.last_units_stay_closed, fix_last(), 1)),
        ("fix-last-two", "two units of five", partial(schedules.last_units_stay_closed, fix_last_two(), 2)),
        ("vanilla", "base units", partial(schedules.open_base_units, vanilla(), "vanilla")),
        ("vanilla", "phases", partial(schedules.phase_lengths, vanilla(), (99, 100, 101))),
        (
            "vanilla",
            "phases, strict",
            partial(schedules.phase_lengths, vanilla(strict=True), (100, 100, 100)),
        ),
        ("anti", "base units", partial(schedules.open_base_units, anti(), "anti")),
        ("anti", "phases, strict", partial(schedules.phase_lengths, anti(strict=True), (100, 100, 100))),
    ]


def reduction_checks() -> Entries:
    """Settings in which a method must equal another method, or torch.optim.SGD."""
    same, equal = reductions.methods_agree, (8, 8, 8)
    return [
        ("fedavgm", "beta 0 is fedavg", partial(same, fedavgm(0.0), fedavg())),
        ("fedavgm", "ema with beta 0 is fedavg", partial(same, fedavgm(0.0, "ema"), fedavg())),
        ("fedexp", "a large epsilon is fedavg", partial(same, fedexp(1e9), fedavg())),
        ("fedexp", "one client is torch.optim.SGD", partial(reductions.one_client_is_sgd, fedexp(), 0.9)),
        ("fednova", "equal work is fedavg", partial(same, fednova(), fedavg(), sizes=equal)),
        ("fednova", "one client is torch.optim.SGD", partial(reductions.one_client_is_sgd, fednova(), 0.9)),
        (
            "fedbug+fednova",
            "equal work is fedbug",
            partial(same, fedbug(fednova(), 0.8), fedbug(fedavg(), 0.8), sizes=equal),
        ),
        ("top-down", "ratio 0 is fedavg", partial(same, fedavg_under(top_down(0.0)), fedavg())),
        (
            "vanilla",
            "thawed from the start is fedavg",
            partial(same, fedavg_under(vanilla((0, 0))), fedavg()),
        ),
        ("anti", "thawed from the start is fedavg", partial(same, fedavg_under(anti((0, 1))), fedavg())),
    ]
