"""Any PyTorch module: captured without weights or a GPU, lowered to operators, and forecast."""
