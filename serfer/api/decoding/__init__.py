"""Images decoded in processes with limits, in turn between clients."""
