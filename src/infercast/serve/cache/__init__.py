"""The paged KV cache: blocks, what they hold, and how a prefix is found again."""
