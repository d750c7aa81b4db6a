"""What a part of a network that runs as it is takes, measured on this machine."""
