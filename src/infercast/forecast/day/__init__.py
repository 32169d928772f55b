"""Replicas over a day of traffic: how many, when, and at what cost."""
