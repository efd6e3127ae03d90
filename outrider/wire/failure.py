"""Why a request failed, and whether it can succeed when it is sent again."""

from enum import Enum
from typing import NamedTuple

from outrider.errors import CapacityError, RequestError


class FailureKind(Enum):
    """What a client can do about a failed request."""

    NONE = "none"  # it has not failed
    REQUEST = "request"  # it fails everywhere until it is changed as the reason says
    NOT_FINITE = "not_finite"  # the model computed NaN or infinity, and its KV may hold them
    INTERNAL = "internal"  # it makes the engine fail; that is not the client's mistake
    TEMPORARY = "temporary"  # the next attempt can succeed


class RequestFailure(NamedTuple):
    """Why one request cannot go on, in one line, and of which kind that is."""

    kind: FailureKind
    reason: str

    @property
    def is_none(self) -> bool:
        return self.kind is FailureKind.NONE

    @property
    def is_temporary(self) -> bool:
        return self.kind is FailureKind.TEMPORARY


NO_FAILURE = RequestFailure(FailureKind.NONE, "")


def failure_of(error: BaseException) -> RequestFailure:
    """The failure of a request that this error ends."""
    reason = str(error) or repr(error)
    if isinstance(error, RequestError):
        return RequestFailure(FailureKind.REQUEST, reason)
    if isinstance(error, CapacityError):
        return RequestFailure(FailureKind.TEMPORARY, reason)
    return RequestFailure(FailureKind.INTERNAL, reason)
