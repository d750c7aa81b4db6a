"""Deployment with SAM: templates, layers and least-privilege policies for a plan."""
