"""SGLang: its settings, memory, graphs, host costs and releases."""
