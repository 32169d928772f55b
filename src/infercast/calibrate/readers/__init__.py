"""Results of load generators, one module a format: what was sent, and what clients saw."""
