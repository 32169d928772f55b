"""Requests, scheduler, KV blocks and the clock; independent of operators and GPUs."""

from infercast.serve.loop import Replica
from infercast.serve.record import Record
from infercast.serve.scheduler.base import FcfsPolicy, PrefillFirstPolicy
from infercast.serve.simulation import simulate
from infercast.serve.workload.request import Request, Segment, Workload

__all__ = ["FcfsPolicy", "PrefillFirstPolicy", "Record", "Replica", "Request", "Segment", "Workload", "simulate"]
