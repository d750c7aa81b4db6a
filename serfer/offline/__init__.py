"""Offline jobs: what lets them yield to online queries (INFaaS, section 3.1).

LoadSource (GET /v1/load) ──▶ OfflineGate, every 2 s ──▶ OfflineThrottle (serfer/control/offline) ──▶ tasks start
"""
