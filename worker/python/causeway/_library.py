"""The C interface of causeway_site.h through ctypes: structs, functions, where the library is."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_void_p
from typing import Any, List

from causeway import errors

ABI_VERSION = 4
ALL = -1
FINISHED, DRAINED, FAILED = 1, 2, 3
LIBRARY_NAME = "libcauseway_site.so"

LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
ValuesFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_int64, c_int64, c_int64, POINTER(c_float))
StartFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)


class ErrorStruct(ctypes.Structure):
    _fields_ = [("code", c_int), ("message", ctypes.c_char * 2048)]


class TensorStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("shape", POINTER(c_int64)), ("rank", c_int32)]


class DeviceValuesStruct(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("tensor", c_int64), ("begin", c_int64), ("end", c_int64), ("type", c_int32)]


class DeviceStruct(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_int32),
        ("published_on_host", c_int32),
        ("values", POINTER(DeviceValuesStruct)),
        ("value_count", c_int64),
    ]


class ShareStruct(ctypes.Structure):
    _fields_ = [("tensor", c_int64), ("begin", c_int64), ("end", c_int64), ("rank", c_int32)]


class OptionsStruct(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("coordinator", c_char_p),
        ("identity", c_char_p),
        ("id", c_char_p),
        ("tls_ca", c_char_p),
        ("tls_cert", c_char_p),
        ("tls_key", c_char_p),
        ("tls_server_name", c_char_p),
        ("token_file", c_char_p),
        ("insecure", c_int32),
        ("device", c_char_p),
        ("software", c_char_p),
        ("threads", c_int32),
        ("connections", c_int32),
        ("max_upload_mbit", c_double),
        ("max_download_mbit", c_double),
        ("connect_timeout_s", c_double),
        ("drain_timeout_s", c_double),
        ("congestion_control", c_char_p),
        ("metrics", c_char_p),
        ("output", c_char_p),
        ("tensorboard", c_char_p),
        ("data_slot", c_int32),
        ("initial_values", ValuesFunction),
        ("initial_values_context", c_void_p),
        ("log", LogFunction),
        ("log_context", c_void_p),
        ("stop", POINTER(c_int32)),
        ("on_device", POINTER(DeviceStruct)),
        ("links", c_void_p),
        ("shares", POINTER(ShareStruct)),
        ("share_count", c_int64),
        ("start", StartFunction),
        ("start_context", c_void_p),
    ]


class InfoStruct(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("fragments", c_int32),
        ("arena_values", c_int64),
        ("parameters", c_int64),
        ("steps", c_int64),
        ("steps_between_syncs", c_int32),
        ("overlap_steps", c_int32),
        ("restored", c_int32),
        ("brought_model", c_int32),
    ]


class RangeStruct(ctypes.Structure):
    _fields_ = [
        ("tensor", c_int64),
        ("tensor_offset", c_int64),
        ("arena_offset", c_int64),
        ("count", c_int64),
    ]


class PieceStruct(ctypes.Structure):
    _fields_ = [("begin", c_int64), ("end", c_int64), ("fragment", c_int32)]


class OrdersStruct(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("go", c_int32),
        ("finished", c_int32),
        ("drain", c_int32),
        ("anew", c_int32),
        ("data_slot", c_int32),
        ("next_draw", c_int64),
        ("step", c_int64),
        ("next_step", c_int64),
        ("end_step", c_int64),
    ]


_SITE = c_void_p
_LINKS = c_void_p
_ERROR = POINTER(ErrorStruct)
_FRAGMENTS = [POINTER(POINTER(c_int32)), POINTER(c_int32)]
# What they take. Those of _CALLS have an error as their last argument, and return its code.
_CALLS = {
    "causeway_describe": [POINTER(OptionsStruct), POINTER(c_void_p)],
    "causeway_site_join": [POINTER(OptionsStruct), POINTER(TensorStruct), c_int64, c_void_p, c_size_t, POINTER(c_void_p)],
    "causeway_site_follow": [POINTER(OptionsStruct), POINTER(TensorStruct), c_int64, c_char_p, c_size_t, POINTER(c_void_p)],
    "causeway_links_open": [c_int32, c_int32, POINTER(c_void_p)],
    "causeway_links_outgoing": [_LINKS, POINTER(c_int32), POINTER(c_void_p), POINTER(c_size_t)],
    "causeway_links_incoming": [_LINKS, c_int32, c_void_p, c_size_t],
    "causeway_site_describe": [_SITE, POINTER(InfoStruct)],
    "causeway_site_config": [_SITE, POINTER(c_void_p)],
    "causeway_site_ranges": [_SITE, c_int32, POINTER(POINTER(RangeStruct)), POINTER(c_int64)],
    "causeway_site_pieces": [_SITE, c_int32, POINTER(POINTER(PieceStruct)), POINTER(c_int64)],
    "causeway_site_published": [_SITE, POINTER(c_void_p)],
    "causeway_site_changed": [_SITE, *_FRAGMENTS],
    "causeway_site_ready": [_SITE],
    "causeway_site_wait": [_SITE, c_double, POINTER(OrdersStruct)],
    "causeway_site_next": [_SITE, *_FRAGMENTS],
    "causeway_site_step": [_SITE, c_int64, c_int64, *_FRAGMENTS],
    "causeway_site_report": [_SITE, c_double, c_double],
    "causeway_site_report_evaluation": [_SITE, c_double],
    "causeway_site_save": [_SITE, POINTER(c_void_p), POINTER(c_size_t)],
    "causeway_site_saved": [_SITE, c_int64],
    "causeway_device_check": [c_int32],
    "causeway_site_gather": [_SITE, POINTER(c_int32), c_int32, c_void_p],
    "causeway_site_scatter": [_SITE, POINTER(c_int32), c_int32, c_int32, c_void_p],
    "causeway_site_move": [_SITE, POINTER(DeviceValuesStruct), c_int64],
    "causeway_site_local": [_SITE, POINTER(RangeStruct), c_int32, c_void_p],
    "causeway_site_finish": [_SITE, *_FRAGMENTS],
    "causeway_site_leave": [_SITE, c_int, c_char_p],
    "causeway_site_summary": [_SITE, POINTER(c_void_p)],
}
_FUNCTIONS = {
    **{name: (c_int, [*takes, _ERROR]) for name, takes in _CALLS.items()},
    "causeway_abi_version": (c_int, []),
    "causeway_software_version": (c_char_p, []),
    "causeway_text_free": (None, [c_void_p]),
    "causeway_links_close": (None, [_LINKS]),
    "causeway_links_free": (None, [_LINKS]),
    "causeway_site_arena": (c_void_p, [_SITE]),
    "causeway_state_free": (None, [c_void_p]),
    "causeway_site_drain": (None, [_SITE]),
    "causeway_site_cancel": (None, [_SITE]),
    "causeway_site_free": (None, [_SITE]),
}


@functools.lru_cache(maxsize=None)
def load() -> Any:
    """The library: $CAUSEWAY_SITE_LIBRARY, or the one beside this file.

    Raises:
        errors.Refused: it is missing, cannot be loaded, or has another interface.
    """
    path = os.environ.get("CAUSEWAY_SITE_LIBRARY")
    if not path:
        path = str(pathlib.Path(__file__).with_name(LIBRARY_NAME))
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise errors.Refused(
            f"the library of a site cannot be loaded from {path}: {error}; install the package "
            "with pip (which builds it), or build the CMake target causeway_site and set "
            "CAUSEWAY_SITE_LIBRARY to its path") from None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise errors.Refused(f"{path} has no {name}: it is of another version of Causeway; "
                                 "install package and library together")
        function.restype = result
        function.argtypes = arguments
    version = library.causeway_abi_version()
    if version != ABI_VERSION:
        raise errors.Refused(
            f"{path} has version {version} of the interface; this package expects {ABI_VERSION}: "
            "install package and library together")
    return library


def call(name: str, *arguments: Any) -> None:
    """Calls a function that takes an error as its last argument, and raises what it says."""
    error = ErrorStruct()
    code = getattr(load(), name)(*arguments, byref(error))
    if code != 0:
        raise errors.from_code(code, error.message.decode("utf-8", "replace"))


def call_for_text(name: str, *arguments: Any) -> str:
    """As `call`, of a function that gives a text, which is freed."""
    text = c_void_p()
    call(name, *arguments, byref(text))
    try:
        return ctypes.string_at(text.value or 0).decode("utf-8") if text.value else ""
    finally:
        load().causeway_text_free(text)


def call_for_list(name: str, kind: Any, *arguments: Any, count: Any = c_int64) -> Any:
    """As `call`, of a function that lists entries of a type, and how many they are as a `count`."""
    entries, size = POINTER(kind)(), count()
    call(name, *arguments, byref(entries), byref(size))
    return entries[: size.value]


def call_for_fragments(name: str, *arguments: Any) -> List[int]:
    """As `call`, of a function that lists fragments."""
    return call_for_list(name, c_int32, *arguments, count=c_int32)
