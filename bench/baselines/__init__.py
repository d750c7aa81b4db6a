"""The papers' own algorithms, re-implemented from their descriptions, to compare with."""
