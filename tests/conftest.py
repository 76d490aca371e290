"""Settings of all tests."""

from hypothesis import settings

# A busy machine is no failure: a case has no time limit.
settings.register_profile("kedge", deadline=None)
settings.load_profile("kedge")
