"""Code that runs inside Lambda: one function for each stage, configured by plan.json and its bootstrap."""

import os

# As in serfer/__init__.py, which a function's package does not hold: ONNX Runtime looks at it when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
