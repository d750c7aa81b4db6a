"""What the service answers at each path."""
