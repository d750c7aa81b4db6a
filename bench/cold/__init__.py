"""Cold starts of functions, part by part."""
