"""The choice of a plan: costs of stages, the search for the best chain of them, and its explanation."""
