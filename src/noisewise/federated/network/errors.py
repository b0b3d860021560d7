"""What goes wrong between processes, in words for whoever sits at one of them."""

from __future__ import annotations

from noisewise.errors import NoisewiseError

__all__ = ["ConfigurationError", "NetworkError", "RefusedError", "UnreachableError"]


class NetworkError(NoisewiseError, RuntimeError):
    """A federated computation that could not be completed; no result was made up."""


class ConfigurationError(NetworkError, ValueError):
    """A configuration file that is incomplete, contradictory or not what the others have."""


class UnreachableError(NetworkError):
    """A server did not answer in time. Everything sent so far is kept; try again."""


class RefusedError(NetworkError):
    """A server refused a request.

    Parameters
    ----------
    message : str
        The server's reason.
    status : int
        HTTP status.
    code : str
        A short word for programs.
    """

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
