"""Headline tables and figures of papers on LLM inference forecasts, next to what infercast has on its bundled data."""
