"""Dispatch of attempts to functions: slots, shared invocations, warm-ups."""
