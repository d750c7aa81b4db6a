"""Every error that SerFer raises on purpose, as one tree.

    SerferError                     exit code
    ├── WrongAnswerError                1      a split answer differs from the unsplit model's (rule 1)
    ├── QueryError                      1      a query ended without an answer
    │   ├── TaskFailedError                    a task failed for good
    │   │   └── BrokenPlanError         3      because of its plan (also a PlanError)
    │   ├── GangAbortedError                   the driver aborted a gang
    │   ├── IncompleteMapError                 windows of a map failed, it is wrong, or its dollars are spent
    │   ├── NotFiniteError                     the network's answer is NaN or infinite
    │   └── DeadlineError                      the query's time ran out
    ├── UsageError                      2      the request contradicts itself
    ├── InputError                      3      something handed to us is unusable
    │   ├── ImageError
    │   │   └── ImageTooLargeError             in bytes or pixels
    │   ├── ModelError
    │   ├── PlanError
    │   ├── UnmetObjectivesError               no variant meets what a query strictly asks for
    │   └── ResultGoneError                    no such result: it expired, was deleted, is another owner's, or never was
    ├── UnavailableError                4      something we need is not there
    │   ├── MissingExtraError                  a package that an extra installs (also a ModuleNotFoundError)
    │   ├── StoreUnavailableError
    │   ├── RegistrationLostError              another worker has taken the registration over
    │   ├── NetworkLoadError                   an instance could not load a network
    │   ├── GangStalledError                   a member of a gang waited in vain for another's borders
    │   ├── LambdaUnavailableError
    │   │   └── LambdaThrottledError           the account's concurrency is used up
    │   └── OverloadedError                    an instance has too much to do to answer in time
    │       └── CeilingError                   the dollars that an hour may cost are spent
    ├── StoreError                      1
    │   ├── MissingKeyError                    no value under that key
    │   ├── AlteredPieceError                  the value is not what was put there
    │   ├── ResultDamagedError                 a part of a result is missing or altered
    │   └── ValueTooLargeError                 the store takes no value of that size
    └── ServiceError                    1      a SerFer service did not do what its client asked for
        ├── KeyRefusedError             2      the API key (also a UsageError)
        ├── RequestRefusedError         3      the request (also an InputError)
        ├── ServiceUnavailableError     4      it is not there, or has no room (also an UnavailableError)
        └── ServiceDeadlineError        1      the time ran out (also a DeadlineError)

A message names what was wrong and what to do about it, in one line: the command line prints it as it is.
"""

from typing import Any


class PlanWarning(UserWarning):
    """A plan is another one than was asked for, for the reason that is given."""


class SerferError(Exception):
    """Base of every error that SerFer raises on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own calls the class with its message alone: what wants more breaks a pool of processes.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class WrongAnswerError(SerferError):
    """A split answer differs from the unsplit model's by more than rule 1 allows."""


class QueryError(SerferError):
    """A query ended without an answer."""


class TaskFailedError(QueryError):
    """A task failed for good: its retries are used up, or no retry can help."""


class GangAbortedError(QueryError):
    """The driver aborted a gang: its query has ended, or continues stage by stage."""


class IncompleteMapError(QueryError):
    """Windows of a map failed for good, its dollars are spent, or it is not the network's: what is done is kept.

    `report` is the `MapReport`, or a list of them, of what has been done.
    """

    def __init__(self, message: str, report: Any = None) -> None:  # noqa: ANN401 - of a package above this one
        super().__init__(message)
        self.report = report


class NotFiniteError(QueryError):
    """The network's output holds NaN or infinity: neither classes nor JSON can be made of it."""


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


class ImageTooLargeError(ImageError):
    """An image has more bytes or pixels than are accepted."""


class ModelError(InputError):
    """A model cannot be read, or holds what SerFer cannot split."""


class PlanError(InputError):
    """A plan directory is incomplete, altered, or of another format."""


class UnmetObjectivesError(InputError):
    """No variant of the application meets the objectives that a query strictly asks for."""


class ResultGoneError(InputError):
    """There is no such result: it has expired, was deleted, belongs to another owner, or never was whole."""


class BrokenPlanError(TaskFailedError, PlanError):
    """A function could not do its part of the plan: a file is missing there, or its graph cannot be computed."""


class UnavailableError(SerferError):
    """Something that the work needs cannot be reached."""

    exit_code = 4


class MissingExtraError(UnavailableError, ModuleNotFoundError):
    """A package is not installed; the message has the pip command that installs it (serfer/extras.py)."""


class StoreUnavailableError(UnavailableError):
    """The store does not answer."""


class NoRegistryError(UnavailableError):
    """There is no registry in a place, where one can be made."""


class RegistrationLostError(UnavailableError):
    """Another worker has taken a registration over, or it has ended: this one stops working on it."""


class NetworkLoadError(UnavailableError):
    """An instance could not load a network; a later query tries again."""


class GangStalledError(UnavailableError):
    """A member of a gang waited in vain for the borders of another."""


class LambdaUnavailableError(UnavailableError):
    """The Lambda service, or a function of it, does not answer."""


class LambdaThrottledError(LambdaUnavailableError):
    """The account's concurrency, or a function's, is used up (HTTP 429): later there may be room."""


class OverloadedError(UnavailableError):
    """An instance has too much to do to answer a query in time; in `retry_after_s` seconds it may have room."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CeilingError(OverloadedError):
    """The dollars that an hour may cost are spent."""


class StoreError(SerferError):
    """A store refused an operation."""


class MissingKeyError(StoreError):
    """No value lies under the key, or it has passed its time to live."""


class AlteredPieceError(StoreError):
    """A stored value is not what was put under its key: it has another length, or its checksum does not match."""


class ResultDamagedError(StoreError):
    """A result cannot be read whole: a part of it is missing, too short or altered, or its manifest is unsound."""


class ValueTooLargeError(StoreError):
    """The store takes no value of that size."""


class ServiceError(SerferError):
    """A SerFer service did not do what its client asked for, or answered what cannot be read.

    `status` is HTTP's, None where no response came; `detail` is the service's own line; `request_id` names the request
    in the service's log; `retry_after_s` says when it asked to be asked again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        detail: str = "",
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = detail
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class KeyRefusedError(ServiceError, UsageError):
    """The service wants an API key, or does not know the one it was given."""


class RequestRefusedError(ServiceError, InputError):
    """The service finds the request unusable: an image that it cannot decode, too much of it, an unknown name."""


class ServiceUnavailableError(ServiceError, UnavailableError):
    """The service cannot be reached, is not ready, or has no room now: asked again later, it may answer."""


class ServiceDeadlineError(ServiceError, DeadlineError):
    """No answer came in time: by the service's clock, or by its client's."""
