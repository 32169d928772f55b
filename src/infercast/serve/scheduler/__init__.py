"""Which sequences each step computes."""
