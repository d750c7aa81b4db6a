"""Stores on Redis, Valkey and ElastiCache: one server, or a cluster."""
