"""Commands for images that no function holds."""
