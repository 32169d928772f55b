"""Several saved runs side by side."""
