"""Analytical models of kernel families: tiles, rounds, pipes and bytes."""
