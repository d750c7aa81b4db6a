"""The rule that makes tiles exact: receptive fields, and how each operator is spread over tiles."""
