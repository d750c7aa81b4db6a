"""Offline queries over HTTP: many images at once, answered when online queries leave room for them."""
