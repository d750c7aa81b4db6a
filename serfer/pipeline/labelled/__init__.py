"""Labelled images, and the accuracy of plans on them."""
