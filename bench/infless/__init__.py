"""INFless' evaluation redone on simulated clusters, beside its published figures."""
