"""Names that tables, models and engine profiles share."""

SWEEP = "sweep"
"""Tables of `infercast measure`: whatever the engine runs, it runs in them."""
LATENT = "latent"
"""The kernel of attention over a stored latent."""
