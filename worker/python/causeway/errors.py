"""Exceptions of a site. Messages say what was expected, what came and what to do."""

from __future__ import annotations

import re
from typing import Dict, Tuple, Type

# gRPC's, from 1 on.
_CODES = ("CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
          "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
          "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED")


class Error(RuntimeError):
    """Base of all exceptions that this package raises.

    Attributes:
        code: gRPC's name of the case, such as "UNAVAILABLE".
        message: what was expected, what came, and what to do.
    """

    # Those of a class, first the one that it has unless it is told another.
    _codes: Tuple[str, ...] = ("UNKNOWN",)

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code or self._codes[0]
        super().__init__(f"{self.code}: {message}")
        self.message = message

    def __reduce__(self):
        return (type(self), (self.message, self.code))


class Cancelled(Error):
    """A wait was ended: by Ctrl-C, `Site.drain`, or the coordinator's order to leave."""

    _codes = ("CANCELLED",)


class InvalidArgument(Error, ValueError):
    """An argument or a value cannot be used."""

    _codes = ("INVALID_ARGUMENT",)


class NotFinite(InvalidArgument):
    """A trained value is infinite or not a number. Nothing of it was sent."""


class Refused(Error):
    """The run does not take this site: another model, another run, a name that is in use."""

    _codes = ("FAILED_PRECONDITION", "NOT_FOUND", "ALREADY_EXISTS")


class NotAuthorized(Refused):
    """The coordinator does not accept this site's certificate or token."""

    _codes = ("PERMISSION_DENIED", "UNAUTHENTICATED")


class Unavailable(Error, ConnectionError):
    """The coordinator cannot be reached, or did not answer in time."""

    _codes = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


class DataLoss(Error):
    """This site's published values differ from the coordinator's, or a state is damaged."""

    _codes = ("DATA_LOSS",)


class Aborted(Error):
    """The coordinator, or another process of this site, has ended this site's part."""

    _codes = ("ABORTED",)


class ResourceExhausted(Error):
    """The coordinator, or this machine, is out of disk space or memory."""

    _codes = ("RESOURCE_EXHAUSTED",)


_CLASSES: Dict[str, Type[Error]] = {
    code: kind for kind in (Cancelled, InvalidArgument, Refused, NotAuthorized, Unavailable, DataLoss, Aborted,
                            ResourceExhausted) for code in kind._codes}


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
    name = _CODES[code - 1] if 0 < code <= len(_CODES) else "UNKNOWN"
    message = message.replace("--published=host", "values='pinned'")
    message = message.replace("--values=host", "values='host'")
    message = re.sub(r"--(\w+)", lambda flag: _ARGUMENTS.get(flag.group(1), flag.group()), message)
    message = message.replace("options->", "")
    return _CLASSES.get(name, Error)(message, name)
