"""What is split: models from their sources to one plain graph of operators."""
