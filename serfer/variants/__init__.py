"""Variants of a network: which are worth having, how they are made, measured, and registered.

network ──▶ one plan ──▶ candidates ──▶ made ──▶ predicted ──┐
                                                             ├──▶ those that nothing beats ──▶ registry
               the whole network, by precision and batch ──▶ measured
"""
