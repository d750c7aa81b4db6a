"""Clients of the HTTP API, blocking and asynchronous."""
