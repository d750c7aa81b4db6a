"""Units that many modules convert by."""

MS_PER_S = 1000
S_PER_HOUR = 3600.0
MB_PER_GB = 1024
MIB = 1024 * 1024
"""Bytes; AWS's "MB" of memory and of packages are these."""
FLOAT_BYTES = 4
"""Bytes of a float32."""
