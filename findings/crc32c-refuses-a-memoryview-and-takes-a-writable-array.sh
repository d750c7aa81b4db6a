#!/usr/bin/env bash
# google-crc32c 1.9.0 (the C implementation of its wheel) says of a memoryview of bytes that it "must be read-only bytes-like object, not
# memoryview", though it is one, and so of a bytearray. It takes numpy arrays, also one that is writable. So parts of a buffer cannot be
# checked without a copy, unless they are wrapped in an array; one expects what zlib.crc32 takes, any contiguous buffer.
#
# Seen on 2026-11-30:
#   bytes                 3802278198
#   bytearray             TypeError: argument 1 must be read-only bytes-like object, not bytearray
#   memoryview, readonly  TypeError: argument 1 must be read-only bytes-like object, not memoryview
#   array, writable       3802278198
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check google-crc32c==1.9.0 numpy==2.4.6
pip freeze
python <<'EOF'
import zlib

import google_crc32c
import numpy as np

data = b"ab"
buffers = {
    "bytes": data,
    "bytearray": bytearray(data),
    "memoryview, readonly": memoryview(data),
    "array, writable": np.frombuffer(bytearray(data), np.uint8),
}
assert buffers["memoryview, readonly"].readonly and buffers["array, writable"].flags.writeable
assert len({zlib.crc32(buffer) for buffer in buffers.values()}) == 1

read = {}
for name, buffer in buffers.items():
    try:
        read[name] = google_crc32c.value(buffer)
    except TypeError as error:
        read[name] = f"TypeError: {error}"
    print(f"{name:21}", read[name])

assert google_crc32c.implementation == "c"
assert read["bytes"] == read["array, writable"] == 3802278198
assert str(read["bytearray"]).startswith("TypeError") and str(read["memoryview, readonly"]).startswith("TypeError")
EOF
