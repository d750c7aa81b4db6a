"""Clients of instances that run the whole network, over the Open Inference Protocol."""
