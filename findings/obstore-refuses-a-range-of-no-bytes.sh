#!/usr/bin/env bash
# obstore 0.12.1 raises ValueError for a range whose end is its start, before it asks the store, in memory and on disk alike. One such range
# among several fails the whole call of `get_ranges`. An empty array or tensor in an index of offsets is such a range; one expects the empty
# bytes that slices of Python give, and fsspec 2026.9.0 over the same file. A range that ends beyond the object is cut without an error.
#
# Seen on 2026-11-30, ten bytes:
#   memory  3 to 3: ValueError  [1 to 1, 1 to 4]: ValueError  8 to 18: b'89'
#   disk    3 to 3: ValueError  [1 to 1, 1 to 4]: ValueError  8 to 18: b'89'
#   fsspec  3 to 3: b''  [1 to 1, 1 to 4]: [b'', b'123']  8 to 18: b'89'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check obstore==0.12.1 fsspec==2026.9.0
pip freeze
python <<'EOF'
from pathlib import Path

import fsspec
from obstore.store import LocalStore, MemoryStore

data = b"0123456789"
Path("store").mkdir()
Path("store/object").write_bytes(data)
memory, disk = MemoryStore(), LocalStore("store")
memory.put("object", data)


def attempt(call, *args, **kwargs):
    try:
        read = call("object", *args, **kwargs)
    except ValueError:
        return "ValueError"
    return [bytes(part) for part in read] if isinstance(read, list) else bytes(read)


read = {}
for name, store in (("memory", memory), ("disk", disk)):
    none = attempt(store.get_range, start=3, end=3)
    several = attempt(store.get_ranges, starts=[1, 1], ends=[1, 4])
    read[name] = none, several, attempt(store.get_range, start=8, end=18)
files = fsspec.filesystem("file")
path = str(Path("store/object").absolute())
none, beyond = files.cat_file(path, start=3, end=3), files.cat_file(path, start=8, end=18)
read["fsspec"] = none, files.cat_ranges([path, path], [1, 1], [1, 4]), beyond
for name, (none, several, beyond) in read.items():
    print(f"{name:6}  3 to 3: {none}  [1 to 1, 1 to 4]: {several}  8 to 18: {beyond}")

assert read["memory"] == read["disk"] == ("ValueError", "ValueError", b"89")
assert read["fsspec"] == (b"", [b"", b"123"], b"89")
EOF
