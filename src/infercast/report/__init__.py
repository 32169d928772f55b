"""Results as tables and JSON."""
