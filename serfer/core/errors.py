"""Every error that SerFer raises on purpose, as one tree.

    SerferError                     exit code
    ├── WrongAnswerError                1      a split answer differs from the unsplit model's (rule 1)
    ├── QueryError                      1      a query ended without an answer
    │   ├── TaskFailedError                    a task failed for good
    │   └── DeadlineError                      the query's time ran out
    ├── UsageError                      2      the request contradicts itself
    ├── InputError                      3      something handed to us is unusable
    │   ├── ImageError
    │   ├── ModelError
    │   └── PlanError
    ├── UnavailableError                4      something we need is not there
    │   ├── StoreUnavailableError
    │   └── LambdaUnavailableError
    └── StoreError                      1
        ├── MissingKeyError                    no value under that key
        └── ValueTooLargeError                 the store takes no value of that size

A message names what was wrong and what to do about it, in one line: the command line prints it as it is.
"""


class SerferError(Exception):
    """Base of every error that SerFer raises on purpose."""

    exit_code = 1


class WrongAnswerError(SerferError):
    """A split answer differs from the unsplit model's by more than rule 1 allows."""


class QueryError(SerferError):
    """A query ended without an answer."""


class TaskFailedError(QueryError):
    """A task failed for good: its retries are used up, or no retry can help."""


class DeadlineError(QueryError):
    """The query's time ran out before its last stage answered."""


class UsageError(SerferError):
    """The request contradicts itself or asks for what does not exist."""

    exit_code = 2


class InputError(SerferError):
    """Something handed to us from outside is unusable."""

    exit_code = 3


class ImageError(InputError):
    """An image cannot be decoded, or is too large in bytes or pixels."""


class ModelError(InputError):
    """A model cannot be read, or holds what SerFer cannot split."""


class PlanError(InputError):
    """A plan directory is incomplete, altered, or of another format."""


class UnavailableError(SerferError):
    """Something that the work needs cannot be reached."""

    exit_code = 4


class StoreUnavailableError(UnavailableError):
    """The store does not answer."""


class LambdaUnavailableError(UnavailableError):
    """The Lambda service, or a function of it, does not answer."""


class StoreError(SerferError):
    """A store refused an operation."""


class MissingKeyError(StoreError):
    """No value lies under the key, or it has passed its time to live."""


class ValueTooLargeError(StoreError):
    """The store takes no value of that size."""
