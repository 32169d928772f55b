"""Measuring a GPU: which kernels, at which shapes, timed how, kept where. Needs PyTorch; nothing above imports it."""
