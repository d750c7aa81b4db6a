"""MArk (ATC 2019): its evaluation redone."""
