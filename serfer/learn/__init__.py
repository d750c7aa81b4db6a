"""Learns values of capacity from a load's past, in processes of their own; needs the extra `learn`."""
