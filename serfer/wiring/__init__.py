"""The only place that picks concrete classes: a plan directory and options become a running pipeline."""
