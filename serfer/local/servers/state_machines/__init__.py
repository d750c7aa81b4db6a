"""Code of a Step Functions service's process: it serves this user alone, and signs its calls of functions."""
