"""Case II, live: instances that hold variants of applications come and go, and variants on them, as the load changes.

drivers' demand, instances' states ──> observing ──> FleetScaler (pure) ──┬──> copies: load and unload, by HTTP
one leader (serfer/fleet/lease.py) ───────────────────────────────────────┴──> provisioners: start and stop
"""
