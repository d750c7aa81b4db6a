"""Measuring what operators of networks cost on this machine."""
