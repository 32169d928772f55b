"""What holds for all tests."""

from hypothesis import settings

# A busy machine is no error, and the same tests run with the same examples everywhere.
settings.register_profile("infercast", deadline=None, derandomize=True)
settings.load_profile("infercast")
