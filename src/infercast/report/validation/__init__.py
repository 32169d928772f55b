"""Forecasts against measurements, for people and for programs."""
