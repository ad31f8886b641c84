"""The C interface through ctypes, as causeway._library reads its header: enough of it for tests."""

import ctypes
import json
import os
import pathlib
import sys

BIN = pathlib.Path(os.environ["CAUSEWAY_BIN"])
os.environ["CAUSEWAY_SITE_LIBRARY"] = str(BIN / "libcauseway_site.so")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker" / "python"))

from causeway import _library as lib  # noqa: E402

LIBRARY = lib.load()
CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, FAILED_PRECONDITION, ABORTED = 1, 3, 4, 9, 10
FINISHED, DRAINED, FAILED, ALL = 1, 2, 3, -1
pointer = ctypes.c_void_p


class SiteError(Exception):
    def __init__(self, error):
        self.code = error.code
        super().__init__(error.message.decode())


def make_tensors(tensors):
    """Of pairs of a name and a shape."""
    array = (lib.TensorStruct * len(tensors))()
    for entry, (name, shape) in zip(array, tensors):
        entry.name = name.encode()
        entry.shape = (ctypes.c_int64 * len(shape))(*shape)
        entry.rank = len(shape)
    return array


def make_options(coordinator, **fields):
    options = lib.OptionsStruct(size=ctypes.sizeof(lib.OptionsStruct), coordinator=coordinator.encode())
    for name, value in fields.items():
        setattr(options, name, value.encode() if isinstance(value, str) else value)
    return options


def call(function, *arguments):
    error = lib.ErrorStruct()
    status = getattr(LIBRARY, f"causeway_{function}")(*arguments, ctypes.byref(error))
    assert status == error.code
    if status != 0:
        raise SiteError(error)


def describe(coordinator):
    return json.loads(lib.call_for_text("causeway_describe", ctypes.byref(make_options(coordinator))))


class Site:
    """One site whose parameters are the arena itself."""

    def __init__(self, coordinator, tensors, state=None, **fields):
        self.lines = []
        self.log = lib.LogFunction(lambda _, level, line: self.lines.append((level, line.decode())))
        self.options = make_options(coordinator, log=self.log, **fields)
        self.handle = pointer()
        call("site_join", ctypes.byref(self.options), make_tensors(tensors), len(tensors), state,
             len(state) if state else 0, ctypes.byref(self.handle))
        self.info = lib.InfoStruct(size=ctypes.sizeof(lib.InfoStruct))
        self.call("describe", ctypes.byref(self.info))
        self.arena = (ctypes.c_float * self.info.arena_values).from_address(
            LIBRARY.causeway_site_arena(self.handle))
        self.orders = lib.OrdersStruct(size=ctypes.sizeof(lib.OrdersStruct))

    def call(self, function, *arguments):
        call(f"site_{function}", self.handle, *arguments)

    def list(self, function, kind, count, *arguments):
        found, count = ctypes.POINTER(kind)(), count()
        self.call(function, *arguments, ctypes.byref(found), ctypes.byref(count))
        return found[:count.value]

    def fragments(self, function, *arguments):
        return self.list(function, ctypes.c_int32, ctypes.c_int32, *arguments)

    def ranges(self, fragment=ALL):
        return self.list("ranges", lib.RangeStruct, ctypes.c_int64, fragment)

    def wait(self, timeout_s=-1):
        self.call("wait", timeout_s, ctypes.byref(self.orders))
        return self.orders

    def step(self, tokens=64, draws=2):
        return self.fragments("step", tokens, draws)

    def pass_step(self, tokens=64, draws=2):
        self.call("pass", tokens, draws, ctypes.byref(ctypes.c_int32()), ctypes.byref(self.orders))

    def report(self, loss, step_s=float("nan")):
        self.call("report", loss, step_s)

    def change(self, by=1e-3):
        """Stands for an optimizer step."""
        for piece in self.ranges():
            self.arena[piece.arena_offset] += by

    def save(self):
        found, count = pointer(), ctypes.c_size_t()
        self.call("save", ctypes.byref(found), ctypes.byref(count))
        state = ctypes.string_at(found, count.value)
        LIBRARY.causeway_state_free(found)
        return state

    def leave(self, reason, detail=None):
        self.call("leave", reason, detail)

    def cancel(self):
        LIBRARY.causeway_site_cancel(self.handle)

    def free(self):
        LIBRARY.causeway_site_free(self.handle)
        self.handle = pointer()
