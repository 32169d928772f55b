"""A user's own results: read, replayed on the deployment they were measured on, and turned into factors."""

from infercast.calibrate.learn import calibrate
from infercast.calibrate.readers import read_results
from infercast.calibrate.result import Asked, Result

__all__ = ["Asked", "Result", "calibrate", "read_results"]
