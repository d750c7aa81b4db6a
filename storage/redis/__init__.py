"""Stores on Redis, Valkey and ElastiCache: one server, or a cluster."""

from storage.deferred_init import defer_init

defer_init("redis")  # its asyncio clients, commands and cluster client take half of what it takes to import
