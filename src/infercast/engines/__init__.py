"""One step of one replica: GPU time, host time, and what fits in memory."""
