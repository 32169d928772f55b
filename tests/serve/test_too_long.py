"""Requests above the longest that a model allows."""

import pytest

from infercast.errors import InputError
from infercast.serve.workload.request import (
    Request,
    Segment,
    Workload,
    check_too_long,
    refuse_too_long,
    truncated,
    without_too_long,
)

SHARED = (Segment(1, 512), Segment(2, 512), Segment(3, 200))
LONG = Request(1.0, 1224, 100, SHARED)
SHORT = Request(0.0, 100, 100)
ENDLESS = Request(2.0, 10, 5000)


def test_the_prompt_is_cut_first_and_keeps_its_beginning() -> None:
    cut = truncated(Workload((SHORT, LONG), description="two"), 1000)
    assert cut.requests == (SHORT, Request(1.0, 900, 100, (Segment(1, 512), Segment(2, 388))))
    assert (cut.num_truncated, cut.description) == (1, "two; 1 of 2 cut to max_model_len 1,000")
    whole = truncated(Workload((LONG,)), 612)
    assert whole.requests[0].prefix == (Segment(1, 512),)


def test_an_answer_that_leaves_no_room_is_cut_too() -> None:
    assert truncated(Workload((ENDLESS,)), 1000).requests == (Request(2.0, 1, 999),)


def test_what_fits_stays_as_it_is() -> None:
    workload = Workload((SHORT, LONG))
    assert truncated(workload, 1324) is workload
    assert without_too_long(workload, 1324) is workload
    refuse_too_long(workload, 1324)


def test_those_that_do_not_fit_are_left_out() -> None:
    left = without_too_long(Workload((SHORT, LONG, ENDLESS), description="three"), 1000)
    assert (left.requests, left.num_skipped) == ((SHORT,), 2)
    with pytest.raises(InputError, match="all 1 requests are longer than max_model_len 10; none is left"):
        without_too_long(Workload((SHORT,)), 10)


def test_refused_with_how_many_there_are() -> None:
    with pytest.raises(InputError, match=r"request 1 needs 1224 input \+ 100 output tokens.*\(2 of 3 requests"):
        refuse_too_long(Workload((SHORT, LONG, ENDLESS)), 1000)
    with pytest.raises(InputError, match="'drop'; known: refuse, skip, truncate"):
        check_too_long("drop")
