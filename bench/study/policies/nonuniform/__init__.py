"""INFless' non-uniform batching for the instances of one model, live and in the simulator (section 3.2).

    scenario ──sizes──► batch sizes with their ranges [r_low, r_up] ──mix──► how many instances of each ──► plan
    the rate of all drivers, instances and their batch sizes ──RateDispatcher──► the instance of a query, or Lambda

Pure: no clock, no I/O (docs/explanation/policies.md).
"""
