"""The questions users ask, one function each: what fits, what a step costs, what users will see."""
