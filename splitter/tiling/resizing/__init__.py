"""Resizing of maps: what it does to rows and columns, and how a tile does its part."""
