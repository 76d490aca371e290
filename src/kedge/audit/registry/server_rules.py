"""The checks of server rules and of the schedules FedBug is compared with, by method."""

from collections.abc import Callable
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
from kedge.audit.finding import Finding
from kedge.audit.oracles import fedbug as oracle_fedbug
from kedge.audit.oracles import schedules as oracle_schedules
from kedge.audit.oracles import server_rules as oracle_server
from kedge.audit.references import reductions
from kedge.core.algorithm import Algorithm
from kedge.core.schedules import Schedule

Rows = list[tuple[str, str, Callable[[], Finding]]]

HEAVY_BALL = "heavy_ball m=beta*m+delta (Hsu et al., FedNTD and FedExP repos)"
EMA = "ema m=beta*m+(1-beta)*delta (FedDecorr, MOON, FedBug repos)"
FROM_TAU, FROM_ZERO = "v0=tau^2 (Reddi et al. Algorithm 2)", "v0=0 (FedDecorr repo form)"
PAPER = "eta_g_paper max(1, sum||d||^2/(2m(||dbar||^2+eps)))"
OFFICIAL = "eta_g_official_code (eps multiplied by m)"
FEDBUG_CODE = "eta_g_fedbug_code (no 1/2, len() bug makes eps=m)"


def momentum(algorithm: Algorithm, key: str) -> Finding:
    """Oracle fedavgm."""
    inputs = "server_deltas_round1_2 (mean client update)"
    return oracle_server.two_rounds(algorithm, "fedavgm", inputs, key)


def adam(algorithm: Algorithm, key: str) -> Finding:
    """Oracle fedadam."""
    return oracle_server.two_rounds(algorithm, "fedadam", "server_deltas", key)


def under(schedule: Schedule) -> Algorithm:
    """FedAvg under a schedule."""
    return replace(fedavg(), schedule=schedule)


def oracles() -> Rows:
    """The specification's numbers."""
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
        ("fedexp", "one participant", partial(server.alone, fedexp())),
        ("fednova", "unequal work", partial(server.unequal_work, fednova(), "w_next")),
        (
            "fedavg",
            "unequal work",
            partial(server.unequal_work, fedavg(), "fedavg_for_comparison"),
        ),
        ("fednova", "momentum", partial(server.momentum_steps, fednova())),
        ("top-down", "update top_down", partial(update, under(top_down(1.0)), "top_down_(s,p)")),
        ("fix-last", "update fix_last", partial(update, under(fix_last()), "fix_last_layer_(s,p)")),
        ("fix-last", "one unit of five", partial(schedules.never, fix_last(), 1)),
        ("fix-last-two", "two units of five", partial(schedules.never, fix_last_two(), 2)),
        ("vanilla", "base units", partial(schedules.thawed, vanilla(), "vanilla")),
        ("vanilla", "phases", partial(schedules.phases, vanilla(), (99, 100, 101))),
        ("vanilla", "phases, strict", partial(schedules.phases, vanilla(strict=True), (100, 100, 100))),
        ("anti", "base units", partial(schedules.thawed, anti(), "anti")),
        ("anti", "phases, strict", partial(schedules.phases, anti(strict=True), (100, 100, 100))),
    ]


def reduced() -> Rows:
    """Where they must be another method."""
    same, equal = reductions.same, (8, 8, 8)
    return [
        ("fedavgm", "beta 0 is fedavg", partial(same, fedavgm(0.0), fedavg())),
        ("fedavgm", "ema with beta 0 is fedavg", partial(same, fedavgm(0.0, "ema"), fedavg())),
        ("fedexp", "a large epsilon is fedavg", partial(same, fedexp(1e9), fedavg())),
        ("fedexp", "one client is torch.optim.SGD", partial(reductions.one_client, fedexp(), 0.9)),
        ("fednova", "equal work is fedavg", partial(same, fednova(), fedavg(), sizes=equal)),
        ("fednova", "one client is torch.optim.SGD", partial(reductions.one_client, fednova(), 0.9)),
        (
            "fedbug+fednova",
            "equal work is fedbug",
            partial(same, fedbug(fednova(), 0.8), fedbug(fedavg(), 0.8), sizes=equal),
        ),
        ("top-down", "ratio 0 is fedavg", partial(same, under(top_down(0.0)), fedavg())),
        ("vanilla", "thawed from the start is fedavg", partial(same, under(vanilla((0, 0))), fedavg())),
        ("anti", "thawed from the start is fedavg", partial(same, under(anti((0, 1))), fedavg())),
    ]
