"""Global average pooling in place of a fully connected head (SerFer, section 4.1.1, optimisation 2)."""
