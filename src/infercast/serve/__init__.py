"""Requests, scheduler, KV blocks and the clock. Knows no operator and no GPU."""

from infercast.serve.limits import Limits
from infercast.serve.record import Record
from infercast.serve.request import Request, Segment, Workload
from infercast.serve.simulation import Replica, simulate

__all__ = ["Limits", "Record", "Replica", "Request", "Segment", "Workload", "simulate"]
