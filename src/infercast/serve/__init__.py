"""Requests, scheduler, KV blocks and the clock. Knows no operator and no GPU."""
