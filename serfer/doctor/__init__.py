"""Checks of this machine, and of an AWS account before a deployment."""
