"""Stores on Redis, Valkey and ElastiCache: one server, or a cluster."""

from serfer.storage.deferred_init import defer_init

defer_init("redis")  # its exceptions and the slots of keys are all that a worker's store takes
