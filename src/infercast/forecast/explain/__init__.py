"""Where the time of a run went: steps, kernels, requests."""
