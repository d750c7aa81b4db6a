"""What `serfer package` writes: layers, wheels, a bill of materials, and the record of it."""
