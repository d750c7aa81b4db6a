"""INFaaS (ATC 2021): its evaluation redone."""
