"""80 % intervals around a forecast, and where they come from."""
