"""A user's own results: read, replayed on the deployment they were measured on, and turned into factors."""

from infercast.calibration.learn import calibrate
from infercast.calibration.readers import read_results
from infercast.calibration.result import Asked, Result

__all__ = ["Asked", "Result", "calibrate", "read_results"]
