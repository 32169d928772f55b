"""Workloads: requests, their arrivals and lengths, and recorded traces."""
