"""Whatever in the product deletes files, keys or resources, or takes their place: each deletes only what is ours.

A new call that deletes fails here until its file's row counts it and says why nobody else's things are in danger.
"""

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("serfer", "splitter", "drivers", "lambdas", "storage", "sam")
METHODS = re.compile(
    r"unlink|rmtree|rmdir|removedirs|f?truncate|renames?|flush(db|all)|put_bucket_lifecycle\w*|"
    r"(delete|terminate|destroy|purge|abort)_\w+|forget_unused"
)
CALLS = re.compile(r"(os|shutil)\.(remove|replace|move)|(?!(router|np)\.).*\.delete|delete")
COMMANDS = {"DEL", "UNLINK", "FLUSHDB", "FLUSHALL"}  # of Redis

ASIDE = (
    "a file or folder that was written under a random name of its own, before it takes the name that is to be written"
)
KEYS = "keys that only we give: a query's, a result's, a registry's, in the store that was named for them"
ASKED = "what its user asks by name to have deleted"
CACHE = "an entry of the cache, by a mark in it or a name that only we give (serfer/build_cache.py)"
RECORD = "a file of ours, whose own name it has"
MADE = "what this process has just made"
DELETING = {
    "drivers/poll.py": (1, KEYS),
    "drivers/push.py": (1, KEYS),
    "drivers/query_store.py": (1, KEYS),
    "drivers/stepfunctions/driver.py": (1, KEYS),
    "lambdas/worker.py": (1, KEYS),
    "sam/build/layers.py": (1, CACHE),
    "sam/build/package.py": (2, MADE),
    "sam/build/uploader.py": (4, "weights by their digest, and uploads of them, in the bucket that the template makes"),
    "sam/build/wheels.py": (1, CACHE),
    "sam/teardown.py": (
        4,
        "a stack with our tag, its buckets, and what SAM CLI uploaded for it: serfer deploy destroy",
    ),
    "serfer/api/routes/releases.py": (1, ASKED),
    "serfer/build_cache.py": (6, CACHE),
    "serfer/cli/registry/applications.py": (1, ASKED),
    "serfer/cli/result.py": (1, ASKED),
    "serfer/client/arrays.py": (3, ASIDE),
    "serfer/client/results.py": (2, ASKED),
    "serfer/files.py": (2, ASIDE),
    "serfer/fleet/open_pool.py": (1, "a folder of a pool in the cache, where it is empty"),
    "serfer/fleet/provisioners/auto_scaling.py": (1, "an instance of the group that was named for the pool, by its id"),
    "serfer/fleet/provisioners/local.py": (3, "records and logs of processes that a pool started, in its own folder"),
    "serfer/local/lambda_/runtime.py": (2, ASIDE),
    "serfer/mapping/job.py": (1, RECORD),
    "serfer/mapping/many_images.py": (1, "retry.txt, whose lines are images of this map or its manifest"),
    "serfer/packaging/bundle.py": (3, CACHE),
    "serfer/pipeline/health.py": (1, KEYS),
    "serfer/raster/durable.py": (2, ASIDE),
    "serfer/raster/objects.py": (3, "the record of an upload of ours, and the upload that it names"),
    "serfer/raster/results/parts.py": (9, "parts by their names, in a directory that is refused where it holds others"),
    "serfer/raster/results/result.py": (3, ASIDE),
    "serfer/registry/garbage.py": (3, KEYS),
    "serfer/registry/plan_files.py": (5, ASIDE),
    "serfer/registry/registry.py": (1, KEYS),
    "serfer/registry/store.py": (7, KEYS),
    "serfer/results/results.py": (3, KEYS),
    "serfer/variants/register.py": (2, CACHE),
    "serfer/wiring/plan_cache.py": (1, CACHE),
    "splitter/build.py": (3, MADE),
    "splitter/plan_dir/output_directory.py": (6, "a plan or build, refused where it holds anything that is not of one"),
    "storage/contract.py": (9, "keys of the tests of a store"),
    "storage/coordination.py": (1, KEYS),
    "storage/file/directory.py": (
        2,
        "expired files by names of ours, in a directory that is refused unless it is a store",
    ),
    "storage/file/store.py": (4, KEYS),
    "storage/memory.py": (1, KEYS),
    "storage/redis/cluster.py": (1, KEYS),
    "storage/redis/store.py": (1, KEYS),
    "storage/routed.py": (1, KEYS),
    "storage/s3/client.py": (1, KEYS),
    "storage/s3/coordination.py": (2, KEYS),
    "storage/s3/objects.py": (1, KEYS),
    "storage/s3/store.py": (
        3,
        KEYS + "; a rule for the store's prefix, which is refused where there is none; other rules stay",
    ),
    "storage/versioned_values.py": (1, KEYS),
    "storage/wrapping.py": (2, KEYS),
}


def _deletes(node):
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in COMMANDS
    if not isinstance(node, ast.Call):
        return False
    text, name = ast.unparse(node.func), getattr(node.func, "attr", getattr(node.func, "id", ""))
    moved = name == "replace" and len(node.args) == 1 and not node.keywords  # a path's: a text's takes two
    return moved or bool(METHODS.fullmatch(name) or CALLS.fullmatch(text))


def deleting_calls():
    found = Counter()
    for file in (file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")):
        if not any(parent.is_symlink() for parent in file.parents if parent.is_relative_to(ROOT)):
            name = file.relative_to(ROOT).as_posix()
            found[name] += sum(map(_deletes, ast.walk(ast.parse(file.read_bytes()))))
    return {name: count for name, count in sorted(found.items()) if count}


def test_every_deleting_call_is_listed_with_its_reason():
    assert deleting_calls() == {name: count for name, (count, _) in DELETING.items()}
