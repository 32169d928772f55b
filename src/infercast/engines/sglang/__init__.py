"""SGLang: settings, memory, CUDA graphs, host costs and releases."""
