"""The tree of exceptions and the sentences they speak."""

import pytest

from infercast.errors import (
    DoesNotFitError,
    FileFormatError,
    InfercastError,
    InputError,
    SaturatedError,
    UnknownNameError,
    UnsupportedModelError,
)


@pytest.mark.parametrize("kind", [UnknownNameError, FileFormatError, UnsupportedModelError, SaturatedError])
def test_wrong_input_is_a_value_error_too(kind):
    assert issubclass(kind, InputError)
    assert issubclass(kind, ValueError)
    assert issubclass(kind, InfercastError)


def test_not_fitting_is_an_answer_not_wrong_input():
    assert issubclass(DoesNotFitError, InfercastError)
    assert not issubclass(DoesNotFitError, InputError)


def test_an_unknown_name_suggests_the_near_ones():
    error = UnknownNameError("GPU", "H20O-sxm", ["l4", "h200-sxm", "h100-sxm"], " (or a file)")
    sentence = "unknown GPU 'H20O-sxm'; did you mean h200-sxm or h100-sxm? known: h100-sxm, h200-sxm, l4 (or a file)"
    assert str(error) == sentence


def test_an_unknown_name_without_near_ones_lists_all():
    assert str(UnknownNameError("dtype", "zzz", ["fp8", "bf16"])) == "unknown dtype 'zzz'; known: bf16, fp8"


def test_a_file_error_names_file_and_line():
    assert str(FileFormatError("trace.csv", "no header")) == "trace.csv: no header"
    assert str(FileFormatError("trace.csv", "not a number", line=7)) == "trace.csv, line 7: not a number"
