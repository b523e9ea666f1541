"""What holds for all tests."""

from hypothesis import settings

# A deadline is a timed assertion: on a machine that others use too it fails for no fault of ours.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
