"""Arguments of a site, checked by name before they become C's, which would take a number for an
address and cut what does not fit."""

from __future__ import annotations

import math
import numbers
import os
import pathlib
from typing import Any, Callable, Dict, Tuple, Union

from causeway import errors

PathLike = Union[str, "os.PathLike[str]"]
_MOST = 2 ** 31 - 1
MOST_TOKENS = 2 ** 40  # As the library's, of one step.
_TLS = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_key", "token": "token_file",
        "server_name": "tls_server_name"}


def invalid(message: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(message)


def wrong(name: str, expected: str, value: Any) -> errors.InvalidArgument:
    """The error of an argument that is something else than expected."""
    shown = repr(value).replace("\n", "")
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return invalid(f"{name} must be {expected}; it is {shown} ({type(value).__name__})")


def text(name: str, value: Any, expected: str = "a text", may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise wrong(name, expected, value)
    if not value and not may_be_empty:
        raise wrong(name, f"{expected} that is not empty", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(name, f"{expected} of whole characters", value) from None
    if "\0" in value:
        raise wrong(name, f"{expected} without NUL characters", value)
    return value


def site_id(coordinator: str, value: Any) -> Tuple[str, str]:
    """What the library is told as the site's name, and what people are: with an invitation, or what
    came of one, the name is that of the certificate, and the library is told none."""
    text("coordinator", coordinator, "a text, HOST:PORT or an invitation")
    if value is not None:
        return text("id", value), value
    coordinator = coordinator.strip()
    last = coordinator.rstrip("/").split("/")
    if coordinator.startswith("causeway://"):
        return "", last[-2] if len(last) > 2 else coordinator
    if ":" in coordinator and not coordinator.startswith(("@", ".", "/")):
        raise wrong("id", "this site's name, unless coordinator is an invitation", value)
    return "", last[-1]


def path(name: str, value: Any, expected: str = "a path") -> bytes:
    if not isinstance(value, (str, os.PathLike)):
        raise wrong(name, expected, value)
    try:
        encoded = os.fsencode(value)
    except UnicodeEncodeError:
        raise wrong(name, f"{expected} of whole characters", value) from None
    if not encoded or b"\0" in encoded:
        raise wrong(name, f"{expected} that is not empty and has no NUL characters", value)
    return encoded


def whole(name: str, value: Any, least: int = 0, most: int = _MOST) -> int:
    """A whole number, also of numpy or in a tensor, also as a float."""
    expected = f"a whole number from {least} to {most}"
    try:
        number = int(value)
        if isinstance(value, (str, bytes, bool)) or number != value:
            raise ValueError
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise wrong(name, expected, value) from None
    if not least <= number <= most:
        raise wrong(name, expected, value)
    return number


def real(name: str, value: Any, expected: str = "a number") -> float:
    """A number, also of numpy or in a tensor."""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise wrong(name, expected, value) from None


def _quantity(unit: str) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        number = real(name, value, f"a number of {unit}")
        if not isinstance(value, numbers.Number) or isinstance(value, bool) or \
                not (math.isfinite(number) and number >= 0):
            raise wrong(name, f"a number of {unit}, 0 or more", value)
        return number
    return check


def flag(name: str, value: Any, hint: str = "") -> bool:
    if not isinstance(value, bool) and type(value).__name__ not in ("bool_", "bool"):
        raise wrong(name, f"True or False{hint}", value)
    return bool(value)


# Options beyond those that are arguments by name. None leaves the library's default.
_OPTIONS: Dict[str, Callable[[str, Any], Any]] = {
    "threads": whole,
    "connections": whole,
    "max_upload_mbit": _quantity("Mbit/s"),
    "max_download_mbit": _quantity("Mbit/s"),
    "connect_timeout_s": _quantity("seconds"),
    "drain_timeout_s": _quantity("seconds"),
    "congestion_control": text,
    "metrics": lambda name, value: text(name, value, "a text, HOST:PORT"),
    "identity": path,
    "output": path,
    "tensorboard": path,
    "insecure": flag,
    "device": text,
    "software": text,
}


def check_options(options: Dict[str, Any]) -> Dict[str, Any]:
    """Fields of causeway_site_options.

    Raises:
        InvalidArgument: one is unknown, or of another type.
    """
    checked = {}
    for name, value in options.items():
        if name not in _OPTIONS:
            raise invalid(f"{name} is no option of a site; there are {', '.join(_OPTIONS)}")
        if value is not None:
            checked[name] = _OPTIONS[name](name, value)
    return checked


def check_tls(tls: Union[None, PathLike, Dict[str, PathLike]]) -> Dict[str, Any]:
    """Options of a folder that deploy/make_certificates made, or of a dict with the keys ca, cert,
    key, token and server_name."""
    if tls is None:
        return {}
    if isinstance(tls, dict):
        unknown = [key for key in tls if key not in _TLS]
        if unknown:
            raise invalid(f"tls has the key {unknown[0]!r}; known are {', '.join(_TLS)}")
        return {_TLS[key]: text("tls['server_name']", value) if key == "server_name" else
                path(f"tls['{key}']", value) for key, value in tls.items() if value is not None}
    folder = pathlib.Path(os.fsdecode(path("tls", tls, "a folder, or a dict of paths")))
    files = {"tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem",
             "token_file": "token"}
    found = {name: os.fsencode(folder / file) for name, file in files.items()
             if (folder / file).exists()}
    if "tls_ca" not in found:
        raise invalid(f"tls: {folder} must be a folder with ca.pem, and cert.pem and key.pem or "
                      "token, as deploy/make_certificates makes one for every worker; ca.pem is "
                      "not there")
    return found
