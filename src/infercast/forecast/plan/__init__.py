"""Which deployment keeps a promise to users at the least cost."""
