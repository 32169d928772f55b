"""What changes a kernel's estimate after physics and fit: anchors, ceilings, power, mixed batches, changed chips."""
