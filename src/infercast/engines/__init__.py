"""One step of one replica: GPU time, host time, and memory."""
