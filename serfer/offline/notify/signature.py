"""Signatures of webhooks, by the Standard Webhooks specification (2023): HMAC-SHA-256 over id, timestamp and body."""

from __future__ import annotations

import base64
import binascii
import hmac

_PREFIX = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64  # as the specification has them


def signing_key(secret: str) -> bytes:
    """Return the key that a secret stands for; raises ValueError, without the secret, for what is none."""
    wrong = f"give {_PREFIX} and 24 to 64 random bytes in base64, such as {_PREFIX}$(openssl rand -base64 32)"
    if not secret.startswith(_PREFIX):
        raise ValueError(wrong)
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(wrong) from None
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise ValueError(wrong)
    return key


def signed_headers(key: bytes, message: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that let a receiver check a webhook: its id, the seconds of its sending, its signature."""
    content = b".".join((message.encode(), str(timestamp).encode(), body))
    signature = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    return {"webhook-id": message, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}
