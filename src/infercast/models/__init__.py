"""A published config.json and a parallel layout, lowered to the operators of one step."""
