"""The C interface through ctypes, as its header has it: enough of it for tests."""

import ctypes
import json
import os
import pathlib

BIN = pathlib.Path(os.environ["CAUSEWAY_BIN"])
LIBRARY = ctypes.CDLL(str(BIN / "libcauseway_site.so"))

CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, FAILED_PRECONDITION, OUT_OF_RANGE = 1, 3, 4, 9, 11
FINISHED, DRAINED, FAILED, ALL = 1, 2, 3, -1

text, pointer, i32, i64, real, size = (
    ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_double,
    ctypes.c_size_t)


def structure(name, fields):
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Error = structure("Error", [("code", ctypes.c_int), ("message", ctypes.c_char * 2048)])
Tensor = structure("Tensor", [("name", text), ("shape", ctypes.POINTER(i64)), ("rank", i32)])
Range = structure("Range", [("tensor", i64), ("tensor_offset", i64), ("arena_offset", i64),
                            ("count", i64)])
Options = structure("Options", [
    ("size", size), ("coordinator", text), ("identity", text), ("id", text), ("tls_ca", text),
    ("tls_cert", text), ("tls_key", text), ("tls_server_name", text), ("token_file", text),
    ("insecure", i32), ("device", text), ("software", text), ("threads", i32), ("connections", i32),
    ("max_upload_mbit", real), ("max_download_mbit", real), ("connect_timeout_s", real),
    ("drain_timeout_s", real), ("congestion_control", text), ("metrics", text), ("output", text),
    ("tensorboard", text), ("data_slot", i32), ("initial_values", pointer),
    ("initial_values_context", pointer), ("log", pointer), ("log_context", pointer), ("stop", pointer),
    ("on_device", pointer), ("links", pointer), ("shares", pointer), ("share_count", i64), ("start", pointer),
    ("start_context", pointer)])
Info = structure("Info", [
    ("size", size), ("fragments", i32), ("arena_values", i64), ("parameters", i64), ("steps", i64),
    ("steps_between_syncs", i32), ("overlap_steps", i32), ("restored", i32),
    ("brought_model", i32)])
Orders = structure("Orders", [
    ("size", size), ("go", i32), ("finished", i32), ("drain", i32), ("anew", i32),
    ("data_slot", i32), ("next_draw", i64), ("step", i64), ("next_step", i64), ("end_step", i64)])
LogFunction = ctypes.CFUNCTYPE(None, pointer, ctypes.c_int, text)
ValuesFunction = ctypes.CFUNCTYPE(ctypes.c_int, pointer, i64, i64, i64, ctypes.POINTER(ctypes.c_float))


class SiteError(Exception):
    def __init__(self, error):
        self.code = error.code
        super().__init__(error.message.decode())


def make_tensors(tensors):
    """Of pairs of a name and a shape."""
    array = (Tensor * len(tensors))()
    for entry, (name, shape) in zip(array, tensors):
        entry.name = name.encode()
        entry.shape = (i64 * len(shape))(*shape)
        entry.rank = len(shape)
    return array


def make_options(coordinator, **fields):
    options = Options(size=ctypes.sizeof(Options), coordinator=coordinator.encode())
    for name, value in fields.items():
        setattr(options, name, value.encode() if isinstance(value, str) else value)
    return options


def call(function, *arguments):
    error = Error()
    status = getattr(LIBRARY, f"causeway_{function}")(*arguments, ctypes.byref(error))
    assert status == error.code
    if status != 0:
        raise SiteError(error)


def describe(coordinator):
    found = ctypes.c_void_p()
    call("describe", ctypes.byref(make_options(coordinator)), ctypes.byref(found))
    described = json.loads(ctypes.string_at(found))
    LIBRARY.causeway_text_free(found)
    return described


class Site:
    """One site whose parameters are the arena itself."""

    def __init__(self, coordinator, tensors, state=None, **fields):
        self.lines = []
        self.log = LogFunction(lambda _, level, line: self.lines.append((level, line.decode())))
        fields.setdefault("log", ctypes.cast(self.log, pointer))
        self.options = make_options(coordinator, **fields)
        self.handle = pointer()
        array = make_tensors(tensors)
        call("site_join", ctypes.byref(self.options), array, i64(len(tensors)), state,
             size(len(state) if state else 0), ctypes.byref(self.handle))
        self.info = Info(size=ctypes.sizeof(Info))
        call("site_describe", self.handle, ctypes.byref(self.info))
        arena = LIBRARY.causeway_site_arena(self.handle)
        self.arena = (ctypes.c_float * self.info.arena_values).from_address(arena)
        self.orders = Orders(size=ctypes.sizeof(Orders))

    def call(self, function, *arguments):
        call(f"site_{function}", self.handle, *arguments)

    def fragments(self, function, *arguments):
        found, count = ctypes.POINTER(i32)(), i32()
        self.call(function, *arguments, ctypes.byref(found), ctypes.byref(count))
        return found[:count.value]

    def ranges(self, fragment=ALL):
        found, count = ctypes.POINTER(Range)(), i64()
        self.call("ranges", i32(fragment), ctypes.byref(found), ctypes.byref(count))
        return found[:count.value]

    def wait(self, timeout_s=-1):
        self.call("wait", real(timeout_s), ctypes.byref(self.orders))
        return self.orders

    def step(self, tokens=64, draws=2):
        return self.fragments("step", i64(tokens), i64(draws))

    def pass_step(self, tokens=64, draws=2):
        passed = i32(7)
        self.call("pass", i64(tokens), i64(draws), ctypes.byref(passed), ctypes.byref(self.orders))
        return passed.value

    def report(self, loss, step_s=float("nan")):
        self.call("report", real(loss), real(step_s))

    def change(self, by=1e-3):
        """Stands for an optimizer step."""
        for piece in self.ranges():
            self.arena[piece.arena_offset] += by

    def save(self):
        found, count = pointer(), size()
        self.call("save", ctypes.byref(found), ctypes.byref(count))
        state = ctypes.string_at(found, count.value)
        LIBRARY.causeway_state_free(found)
        return state

    def finish(self):
        return self.fragments("finish")

    def leave(self, reason, detail=None):
        self.call("leave", ctypes.c_int(reason), detail)

    def cancel(self):
        LIBRARY.causeway_site_cancel(self.handle)

    def drain(self):
        LIBRARY.causeway_site_drain(self.handle)

    def free(self):
        LIBRARY.causeway_site_free(self.handle)
        self.handle = pointer()


LIBRARY.causeway_site_arena.restype = pointer
for _name in ("site_arena", "site_free", "site_cancel", "site_drain", "text_free", "state_free"):
    getattr(LIBRARY, f"causeway_{_name}").argtypes = [pointer]
