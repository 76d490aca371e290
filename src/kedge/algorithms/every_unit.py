"""Every unit trains in every step: the schedule `all`, the default of most methods."""

from kedge.core.schedules import Schedule, all_units


def every_unit() -> Schedule:
    """Every unit trains in every step."""
    return all_units
