"""Several engines in one simulation: load balancers, data parallelism, prefill and decode pools."""
