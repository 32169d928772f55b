"""How the bundled artefacts are fitted and judged: tables of others, and every family of kernels."""
