"""Forecast LLM inference on GPUs before anyone rents them."""

__version__ = "0.1.0"
