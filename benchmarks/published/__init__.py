"""Published runs: the table, the engine and load that each states, and forecasts held against them."""
