"""Wrong variants of server rules and schedules."""

from functools import partial

from tests.oracle.wrong.variant import Checks, with_corrections
from torch import Tensor

from kedge.algorithms import fedavg, fedbug
from kedge.algorithms.fedadam import ServerAdam, fedadam
from kedge.algorithms.fedavgm import fedavgm
from kedge.algorithms.fedexp import Extrapolation, fedexp
from kedge.algorithms.fednova import NormalizedAveraging, fednova
from kedge.algorithms.fix_last import fix_last, fix_last_two
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.top_down import top_down
from kedge.audit.oracles import fedbug as oracle_fedbug
from kedge.audit.oracles import schedules as oracle_schedules
from kedge.audit.oracles import server_rules as oracle_server
from kedge.audit.references import quadratics, reductions
from kedge.audit.registry.server_rules import (
    EMA,
    FROM_TAU,
    FROM_ZERO,
    HEAVY_BALL,
    OFFICIAL,
    PAPER,
    adam,
    fedavg_under,
    momentum,
)
from kedge.core.correction import Cohort, End
from kedge.core.tree import Leaves, Tree, scale


class BiasCorrected(ServerAdam):
    """Adam's bias correction of the first moment, which FedAdam does not have."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        moved, state = ServerAdam.server(self, update, mean, state, cohort)
        return scale(1 / (1 - self.beta1 ** (cohort.round + 1)), moved), state


class TauInside(ServerAdam):
    """√(v + τ) instead of √v + τ."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        _, new = ServerAdam.server(self, update, mean, state, cohort)
        return {k: self.lr * m / (new["v"][k] + self.tau).sqrt() for k, m in new["m"].items()}, new


class NoHalf(Extrapolation):
    """η_g without the ½: FedBug's code with the bug of len() corrected."""

    def rate(self, spread: Tensor, length: Tensor, cohort: Cohort) -> Tensor:
        return (spread / (length + self.epsilon)).clamp(min=1.0)


class Unbounded(Extrapolation):
    """η_g without the maximum, so that it halves the step of a single participant."""

    def rate(self, spread: Tensor, length: Tensor, cohort: Cohort) -> Tensor:
        return spread / (2 * (length + self.epsilon))


class LatestOnly(Extrapolation):
    """The view is the last model instead of the mean of the last two."""

    def views(self, shared: Leaves, state: Tree) -> dict[str, Leaves]:
        return {"last-two": shared}


class FirstKept(Extrapolation):
    """The previous model is never replaced."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return Extrapolation.server(self, update, mean, state, cohort)[0], state


class StepsOnly(NormalizedAveraging):
    """a_i = K_i in every leaf, without momentum."""

    def finish(self, end: End) -> tuple[Tree, Tree]:
        a = {k: end.steps for k in end.delta}
        return end.state, {"a": a, "d": {k: v / end.steps for k, v in end.delta.items()}}


class WithoutEffective(NormalizedAveraging):
    """w ← w + Σ p_i d_i, without τ_eff."""

    def server(self, update: Leaves, mean: Tree, state: Tree, cohort: Cohort) -> tuple[Leaves, Tree]:
        return dict(mean["d"]), state


WRONG: Checks = {
    "fedavgm ema for heavy ball": partial(momentum, fedavgm(0.9, "ema"), HEAVY_BALL),
    "fedavgm heavy ball for ema": partial(momentum, fedavgm(0.9), EMA),
    "fedavgm another beta": partial(momentum, fedavgm(0.7), HEAVY_BALL),
    "fedavgm is not fedavg": partial(reductions.methods_agree, fedavgm(0.5), fedavg()),
    "fedadam v from 0": partial(adam, fedadam(start="zero"), FROM_TAU),
    "fedadam v from tau²": partial(adam, fedadam(), FROM_ZERO),
    "fedadam bias correction": partial(adam, with_corrections(fedavg(), BiasCorrected(0.1)), FROM_TAU),
    "fedadam tau inside the root": partial(adam, with_corrections(fedavg(), TauInside(0.1)), FROM_TAU),
    "fedexp the code's epsilon": partial(oracle_server.extrapolated, fedexp(rule="official-code"), PAPER),
    "fedexp the paper's epsilon": partial(oracle_server.extrapolated, fedexp(), OFFICIAL),
    "fedexp without the half": partial(
        oracle_server.extrapolated, with_corrections(fedavg(), NoHalf(1e-3)), PAPER
    ),
    "fedexp without the max": partial(
        oracle_server.one_participant, with_corrections(fedavg(), Unbounded(1e-3))
    ),
    "fedexp views the last": partial(
        oracle_server.extrapolated, with_corrections(fedavg(), LatestOnly(1e-3)), PAPER
    ),
    "fedexp keeps the first": partial(
        oracle_server.one_participant, with_corrections(fedavg(), FirstKept(1e-3))
    ),
    "fednova is not fedavg": partial(oracle_server.unequal_work, fedavg(), "w_next"),
    "fednova without tau_eff": partial(
        oracle_server.unequal_work, with_corrections(fedavg(), WithoutEffective()), "w_next"
    ),
    "fednova steps only, momentum": partial(
        oracle_server.momentum_steps, with_corrections(fedavg(), StepsOnly())
    ),
    "fednova uniform": partial(quadratics.misses_minimizer, fednova("uniform"), 0.0, (5, 5, 5)),
    "top-down for bottom-up": partial(oracle_fedbug.update, fedavg_under(top_down(1.0)), "bottom_up_(s,p)"),
    "bottom-up for top-down": partial(oracle_fedbug.update, fedbug(fedavg(), 1.0), "top_down_(s,p)"),
    "everything for fix-last": partial(oracle_fedbug.update, fedavg(), "fix_last_layer_(s,p)"),
    "fix-last for fix-last-two": partial(oracle_schedules.last_units_stay_closed, fix_last(), 2),
    "fix-last-two for fix-last": partial(oracle_schedules.last_units_stay_closed, fix_last_two(), 1),
    "anti for vanilla": partial(oracle_schedules.open_base_units, anti(), "vanilla"),
    "strict for the algorithm's rule": partial(
        oracle_schedules.open_base_units, vanilla(strict=True), "vanilla"
    ),
    "the algorithm's rule for strict": partial(oracle_schedules.phase_lengths, vanilla(), (100, 100, 100)),
    "rounds counted from 0": partial(oracle_schedules.open_base_units, vanilla((1, 101, 201)), "vanilla"),
}


HARMLESS: Checks = {
    "steps only is right without momentum": partial(
        oracle_server.unequal_work, with_corrections(fedavg(), StepsOnly()), "w_next"
    ),
    "without the max is right where clients disagree": partial(
        oracle_server.extrapolated, with_corrections(fedavg(), Unbounded(1e-3)), PAPER
    ),
    "keeping the first is right in the first round": partial(
        oracle_server.extrapolated, with_corrections(fedavg(), FirstKept(1e-3)), PAPER
    ),
}
