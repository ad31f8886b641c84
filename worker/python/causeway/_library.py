"""The C interface of causeway_site.h through ctypes: structs, functions, where the library is."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import re
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_void_p
from typing import Any, Dict, List, Tuple

from causeway import errors

LIBRARY_NAME = "libcauseway_site.so"
_HEADER_NAME = "causeway_site.h"
_DECLARATION = re.compile(
    r"typedef struct \{(?P<fields>[^}]*)\} (?P<struct>\w+);"
    r"|typedef struct (?P<handle>\w+) \w+;"
    r"|typedef (?P<returned>\w+) \(\*(?P<callback>\w+)\)\((?P<takes>[^)]*)\);"
    r"|CAUSEWAY_API (?P<result>[\w* ]*?)(?P<function>\w+)\((?P<arguments>[^)]*)\);")
_ARGUMENT = re.compile(r"(?P<type>\w+) *(?P<stars>\**) *\w+(\[(?P<count>\w+)\])?")


class _Header:
    """The interface, as its header declares it: constants, types by their names there, and of each function its
    result and what it takes. Reads the C that is written there, not any."""

    def __init__(self, text: str) -> None:
        text = re.sub(r"/\*.*?\*/|\b(?:const|volatile) ", "", text.replace("const char* ", "text "), flags=re.DOTALL)
        self.constants = {name: int(value) for name, value in re.findall(r"CAUSEWAY_(\w+) (?:= )?(-?\d+)", text)}
        self.types: Dict[str, Any] = {
            "void": None, "text": c_char_p, "char": c_char, "int": c_int, "int32_t": c_int32, "int64_t": c_int64, "size_t": c_size_t,
            "float": c_float, "double": c_double}
        self.functions: Dict[str, Tuple[Any, List[Any]]] = {}
        for found in _DECLARATION.finditer(text):
            if found["struct"]:
                fields = [(re.findall(r"\w+(?=\[|$)", field)[0], self._type(field))
                          for field in map(str.strip, found["fields"].split(";")) if field]
                self.types[found["struct"]] = type(found["struct"], (ctypes.Structure,), {"_fields_": fields})
            elif found["handle"]:
                self.types[found["handle"]] = None
            elif found["callback"]:
                self.types[found["callback"]] = ctypes.CFUNCTYPE(
                    self.types[found["returned"]], *self._list(found["takes"], values=POINTER(c_float)))
            else:  # Values are handed over by their address alone.
                self.functions[found["function"]] = (
                    self._type(found["result"] + "result"), self._list(found["arguments"], values=c_void_p))

    def _list(self, arguments: str, values: Any) -> List[Any]:
        return [self._type(argument, values) for argument in arguments.split(",") if argument not in ("", "void")]

    def _type(self, declaration: str, values: Any = c_void_p) -> Any:
        found = _ARGUMENT.fullmatch(declaration.strip())
        kind, stars = self.types[found["type"]], len(found["stars"])
        if found["count"]:
            return kind * self.constants[found["count"].removeprefix("CAUSEWAY_")]
        if stars:
            # Texts that the library gives are freed by their address, too.
            pointed = {None: c_void_p, c_char: c_void_p, c_float: values}
            kind, stars = pointed[kind] if kind in pointed else POINTER(kind), stars - 1
        return POINTER(kind) if stars else kind


def _read_header() -> _Header:
    """Installed it is beside this file."""
    here = pathlib.Path(__file__).resolve()
    header = here.with_name(_HEADER_NAME)
    if not header.exists():
        header = here.parents[2] / "site" / _HEADER_NAME
    return _Header(header.read_text(encoding="utf-8"))


_header = _read_header()
ABI_VERSION = _header.constants["ABI_VERSION"]
FINISHED, DRAINED, FAILED = (_header.constants[name] for name in ("FINISHED", "DRAINED", "FAILED"))
LogFunction, ValuesFunction, StartFunction = (
    _header.types[f"causeway_{name}_function"] for name in ("log", "values", "start"))
(ErrorStruct, TensorStruct, DeviceValuesStruct, DeviceStruct, ShareStruct, OptionsStruct, InfoStruct, RangeStruct,
 PieceStruct, OrdersStruct) = (_header.types[f"causeway_{name}"] for name in (
     "error", "tensor", "device_values", "device", "share", "site_options", "site_info", "range", "piece", "site_orders"))


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
    for name, (result, arguments) in _header.functions.items():
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
