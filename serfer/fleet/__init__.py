"""The GPU pool: instances started, watched, led by one driver among several, and stopped."""
