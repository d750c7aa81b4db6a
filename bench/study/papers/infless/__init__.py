"""INFless (ASPLOS 2022): its evaluation redone."""
