"""Loads from what others have recorded: traces, access logs, CloudWatch's exports; compressed or not."""
