"""Offline work beside online queries: their load, and how much may run beside it (INFaaS, sections 3.1 and 5)."""
