"""Energy of kernels: what a board draws while one runs."""
