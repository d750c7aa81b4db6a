"""The server of one GPU instance: a whole network, dynamically batched."""
