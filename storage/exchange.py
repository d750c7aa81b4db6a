"""Messages that running functions hand one another: inboxes of a store, which a reader waits for.

An inbox is a key of a store and holds messages in the order in which they came. Reading takes nothing away: a reader
that died is started again and finds every message, and any number may read the same inbox. A message that is sent
twice is there twice; a Redis Cluster that fails over during a send may hold its messages twice as well.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

START = ""
"""The cursor before the first message of any inbox."""


class Message(NamedTuple):
    """Bytes for an inbox; empty ones are allowed."""

    inbox: str
    value: bytes


class Received(NamedTuple):
    """A message, and the cursor after it: opaque, valid for its inbox alone."""

    cursor: str
    value: bytes


class Exchange(Protocol):
    """Inboxes of a store; every method may be called from several threads at once.

    Keys are a store's keys, and `Store.delete` deletes inboxes too. Every method raises UsageError for a malformed key
    and StoreUnavailableError where the backend does not answer.
    """

    def send(self, messages: Sequence[Message], ttl: float) -> None:
        """Append messages to their inboxes, in their order, in one round trip where the backend can.

        Each inbox that gets one lives for `ttl` seconds from now.

        Raises:
            UsageError: `ttl` is not a positive number.
            ValueTooLargeError: the backend takes no message of that size.
            StoreUnavailableError: any of the messages may have been appended or not.
        """

    def receive(self, inbox: str, after: str, timeout_s: float) -> list[Received]:
        """Return all messages of an inbox after a cursor; where there are none, wait for the first.

        It returns as soon as there is any, and an empty list after `timeout_s` seconds. A wait does not keep others
        from sending or receiving, however many wait.
        """
        ...

    def close(self) -> None:
        """Give back connections; a wait under way goes on, and a later call connects again.

        Messages stay until their inbox's time to live has passed.
        """
