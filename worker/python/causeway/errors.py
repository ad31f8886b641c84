"""Exceptions of a site. Messages say what was expected, what came and what to do."""

from __future__ import annotations

import re
from typing import Dict, Type

CODES: Dict[int, str] = {
    1: "CANCELLED",
    2: "UNKNOWN",
    3: "INVALID_ARGUMENT",
    4: "DEADLINE_EXCEEDED",
    5: "NOT_FOUND",
    6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED",
    8: "RESOURCE_EXHAUSTED",
    9: "FAILED_PRECONDITION",
    10: "ABORTED",
    11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED",
    13: "INTERNAL",
    14: "UNAVAILABLE",
    15: "DATA_LOSS",
    16: "UNAUTHENTICATED",
}


class Error(RuntimeError):
    """Base of all exceptions that this package raises.

    Attributes:
        code: gRPC's name of the case, such as "UNAVAILABLE".
        message: what was expected, what came, and what to do.
    """

    def __init__(self, message: str, code: str = "UNKNOWN") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    def __reduce__(self):
        return (type(self), (self.message, self.code))


class Cancelled(Error):
    """A wait was ended: by Ctrl-C, `Site.drain`, or the coordinator's order to leave."""


class InvalidArgument(Error, ValueError):
    """An argument or a value cannot be used."""


class NotFinite(InvalidArgument):
    """A trained value is infinite or not a number. Nothing of it was sent."""


class Refused(Error):
    """The run does not take this site: another model, another run, a name that is in use."""


class NotAuthorized(Refused):
    """The coordinator does not accept this site's certificate or token."""


class Unavailable(Error, ConnectionError):
    """The coordinator cannot be reached, or did not answer in time."""


class DataLoss(Error):
    """This site's published values differ from the coordinator's, or a state is damaged."""


class Aborted(Error):
    """The coordinator, or another process of this site, has ended this site's part."""


class ResourceExhausted(Error):
    """The coordinator, or this machine, is out of disk space or memory."""


_CLASSES: Dict[str, Type[Error]] = {
    "CANCELLED": Cancelled,
    "INVALID_ARGUMENT": InvalidArgument,
    "DEADLINE_EXCEEDED": Unavailable,
    "NOT_FOUND": Refused,
    "ALREADY_EXISTS": Refused,
    "PERMISSION_DENIED": NotAuthorized,
    "RESOURCE_EXHAUSTED": ResourceExhausted,
    "FAILED_PRECONDITION": Refused,
    "ABORTED": Aborted,
    "UNAVAILABLE": Unavailable,
    "DATA_LOSS": DataLoss,
    "UNAUTHENTICATED": NotAuthorized,
}


# Messages name causeway-worker's flags and C's fields; here they are arguments.
_ARGUMENTS = {
    **{name: name for name in ("coordinator", "identity", "id", "threads", "connections",
                               "max_upload_mbit", "max_download_mbit", "congestion_control", "metrics",
                               "tensorboard")},
    "join": "coordinator",
    "connect_timeout": "connect_timeout_s",
    "out": "output",
    "insecure": "insecure=True",
    "tls_ca": "tls['ca']",
    "tls_cert": "tls['cert']",
    "tls_key": "tls['key']",
    "tls_server_name": "tls['server_name']",
    "token_file": "tls['token']",
}


def from_code(code: int, message: str) -> Error:
    """The exception of a code of the C interface."""
    name = CODES.get(code, "UNKNOWN")
    message = message.replace("--published=host", "values='pinned'")
    message = message.replace("--values=host", "values='host'")
    message = re.sub(r"--(\w+)", lambda flag: _ARGUMENTS.get(flag.group(1), flag.group()), message)
    message = message.replace("options->", "")
    return _CLASSES.get(name, Error)(message, name)
