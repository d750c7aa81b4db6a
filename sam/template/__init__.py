"""The template of a deployment: hand-written parts, and what is generated for a plan."""
