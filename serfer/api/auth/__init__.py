"""Authentication: API keys with their quotas, and the hosts that a request may name."""
