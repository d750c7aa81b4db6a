"""Servers of others on this machine: Redis, S3, Step Functions, a load balancer."""
