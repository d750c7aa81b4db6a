"""A cluster of servers under loads: policies of clusters request by request, or by rates where that would take long.

loads ──► ticks: counts of requests ──► ClusterPolicy.step ──► instances
                               └──────► queues: batches, cold starts, drops ──► ClusterOutcome
"""
