"""Output of `serfer deploy package`: layers, wheels, a bill of materials, and the record of it."""
