"""The paged KV cache: blocks, their content, and prefix lookup."""
