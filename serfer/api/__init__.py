"""The HTTP service: classify, Open Inference Protocol, metrics, the page, and its adapter for a function."""
