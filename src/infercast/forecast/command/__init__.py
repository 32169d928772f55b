"""A command that starts an engine, explained: what each flag means, a forecast, and what to change."""
