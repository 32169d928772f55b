"""Launch configurations of routed experts: advice, the file that an engine reads, and measured trials."""
