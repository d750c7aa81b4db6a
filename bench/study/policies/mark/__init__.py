"""MArk (Zhang, Yu, Wang, Yan; ATC 2019, sections 4.1 to 4.5) as a policy: instances planned ahead by a forecast.

    load ──> peaks.py: the highest rate of each minute ──> forecaster.py: of each of the next 60 minutes
         ──> schedule.py: Algorithm 1, the cheapest instances for them, once a minute ──┐
    queries late ──> SloMonitor: backup instances at once ──────────────────────────────┼──> plan, kept for a cool-down
    spot instances taken away ──> standby.py: a stand-in until others serve ────────────┘

What instances cannot answer in time runs on Lambda, as the router has it. `policy.py` has the policies, `CoolDown`
the plans that are kept.
"""
