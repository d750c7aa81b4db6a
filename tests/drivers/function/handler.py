"""Does what its function's name says."""

import os
import time


def handler(_event, _context):
    return {
        "answer": lambda: {"report": os.environ["REPORT"]},
        "nonsense": lambda: {"colour": "blue"},
        "wrong-report": lambda: {"report": "gqFhAaFiAg=="},
        "text": lambda: "text",
        "fail": lambda: 1 // 0,
        "hang": lambda: time.sleep(60),
        "exit": lambda: os._exit(3),
        "hog": lambda: len(bytearray(1 << 30)),
    }[os.environ["AWS_LAMBDA_FUNCTION_NAME"]]()
