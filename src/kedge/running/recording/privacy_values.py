"""ε at δ for the lines of a private run's history."""

from kedge.config.task import Task
from kedge.privacy.accountant import Accountant, amplified_rate
from kedge.running.recording.evaluation import finite_or_none


def accountant_of(task: Task) -> Accountant | None:
    """The accountant of a private run; None if the run is not private."""
    if not task.privacy.active:
        return None
    return Accountant(task.privacy, amplified_rate(task.participation, len(task.federation.clients)))


def privacy_values(accountant: Accountant | None, rounds: int, source: str) -> dict[str, float | str | None]:
    """ε (None: infinite) and δ after `rounds` rounds, and the noise's source; empty without an accountant."""
    if accountant is None:
        return {}
    epsilon = finite_or_none(accountant.epsilon(rounds))
    return {
        "privacy.epsilon": epsilon,
        "privacy.delta": accountant.delta,
        "privacy.noise_source": source,
    }
