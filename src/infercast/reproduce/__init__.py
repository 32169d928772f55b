"""Headline tables and figures of papers on LLM inference forecasts, beside what infercast has on its bundled data."""
