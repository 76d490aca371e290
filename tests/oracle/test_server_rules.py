"""FedExP's step size, and arguments that server rules and schedules refuse."""

from collections.abc import Callable

import pytest
import torch

from kedge.algorithms.fedadam import fedadam
from kedge.algorithms.fedavgm import fedavgm
from kedge.algorithms.fedexp import fedexp
from kedge.algorithms.fednova import fednova
from kedge.algorithms.fix_last import fix_last_two
from kedge.algorithms.layer_expansion import anti, vanilla
from kedge.algorithms.top_down import top_down
from kedge.audit.oracles import schedules as oracle_schedules
from kedge.audit.oracles import server_rules as oracle_server
from kedge.audit.references import quadratics
from kedge.config.method_string import named_tables
from kedge.core.algorithm import LocalTraining, Stage
from kedge.core.errors import RequestError
from kedge.core.optimizers import Adam


def test_fedexp_epsilon_decays_by_round() -> None:
    """With a decay of ½, round 2 has ε/2: η_g = mean‖Δ‖²/(2(‖Δ̄‖² + ε/2)), and w moves by η_g Δ̄."""
    deltas = [[1.0, 0.0], [-0.5, 0.5], [0.2, -0.4]]
    given = torch.tensor(deltas, dtype=torch.float64)
    mean, spread = given.mean(0), given.square().sum(1).mean()
    rates = [spread / (2 * (mean.square().sum() + 0.1 / 2**t)) for t in range(2)]
    for seen in oracle_server.run_with_deltas(
        fedexp(0.1, epsilon_decay=0.5), [0.0, 0.0], deltas, [[0, 1, 2]] * 2
    ).values():
        torch.testing.assert_close(seen[-1].server.shared["w"], sum(rates) * mean, rtol=1e-12, atol=0.0)


def test_fedexp_in_the_audit_extrapolates_where_it_rests() -> None:
    """FedExP has the limit of FedAvg. Its step size is above 1 there, so that the check says something."""
    rest = quadratics.fedprox_limit(0.0, (5, 5, 5))
    a = torch.tensor(quadratics.CURVATURES, dtype=torch.float64)[:, None]
    b = torch.tensor(quadratics.CENTERS, dtype=torch.float64)
    n = torch.tensor(quadratics.SIZES, dtype=torch.float64)
    deltas = (1 - (1 - 0.05 * a) ** 5) * (b - rest)
    spread = (n * deltas.square().sum(1)).sum() / n.sum()
    assert float(spread / (2 * 0.2)) > 1.2


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: fedavgm(1.0), "0 ≤ beta < 1"),
        (lambda: fedavgm(float("nan")), "0 ≤ beta < 1"),
        (lambda: fedadam(0.0), "need lr > 0"),
        (lambda: fedadam(beta2=1.0), "0 ≤ beta2 < 1"),
        (lambda: fedadam(tau=-1.0), "need tau > 0"),
        (lambda: fedexp(0.0), "need epsilon > 0"),
        (lambda: fedexp(epsilon_decay=1.5), "0 < epsilon_decay ≤ 1"),
        (lambda: top_down(1.1), "0 ≤ ratio ≤ 1"),
        (lambda: vanilla(()), "one round per base unit"),
        (lambda: vanilla((5, 0)), "ascending"),
        (lambda: anti((-1, 0)), "from 0 on"),
    ],
)
def test_bad_settings_are_refused_with_a_reason(build: Callable[[], object], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        build()


def test_fednova_refuses_adam() -> None:
    with pytest.raises(RequestError, match="fednova with Adam"):
        Stage(fednova(), 1, LocalTraining(optimizer=Adam()))


def test_a_list_is_an_argument_on_the_command_line() -> None:
    tables = named_tables("vanilla(thaw=[0, 2, 4], strict=true)+fedavgm(beta=0.5, form=ema)")
    assert tables["schedule"] == {"name": "vanilla", "thaw": [0, 2, 4], "strict": True}
    assert tables["method"] == {"name": "fedavgm", "beta": 0.5, "form": "ema"}


def test_thaw_rounds_of_another_number_than_base_units_are_refused() -> None:
    with pytest.raises(RequestError, match=r"3 rounds, but the model has 4 base units \(5 units"):
        oracle_schedules.mask_in(vanilla(), 5, 1)


def test_fixing_every_unit_is_refused() -> None:
    with pytest.raises(RequestError, match="2 units, so none would ever train"):
        oracle_schedules.mask_in(fix_last_two(), 2, 1)
