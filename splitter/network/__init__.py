"""Models, from their sources to one plain graph of operators."""
