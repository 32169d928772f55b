"""Operator x GPU -> Estimate."""
