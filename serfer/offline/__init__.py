"""Offline jobs: what lets them yield to online queries, and who is notified of their end (INFaaS, section 3.1).

LoadSource (GET /v1/load) ──▶ OfflineGate, every 2 s ──▶ OfflineThrottle (serfer/control/offline) ──▶ tasks start
"""
