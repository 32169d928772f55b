"""Forecasts held against measured runs."""
