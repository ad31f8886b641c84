"""One site of the library, from join to leave, with Python's types, interrupts and logging."""

from __future__ import annotations

import ctypes
import json
import logging
import math
import multiprocessing
import os
import queue
import threading
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from causeway import _library as lib
from causeway import errors
from causeway._links import Links

log = logging.getLogger("causeway")
_LOOK_FOR_SIGNALS_S = 0.25
_LEVELS = {0: logging.INFO, 1: logging.WARNING, 2: logging.ERROR}


class Range(NamedTuple):
    """One contiguous piece of a tensor and its place in the arena, in values, row-major."""

    tensor: int
    tensor_offset: int
    arena_offset: int
    count: int


class Owned(NamedTuple):
    """Values of the arena, of one fragment, that a process owns."""

    begin: int
    end: int
    fragment: int


class Orders(NamedTuple):
    """The coordinator's wishes; the fields are those of causeway_site_orders."""

    go: bool
    finished: bool
    drain: bool
    anew: bool
    data_slot: int
    next_draw: int
    step: int
    next_step: int
    end_step: int


class Info(NamedTuple):
    """Facts of the run that do not change; the fields are those of causeway_site_info."""

    fragments: int
    arena_values: int
    parameters: int
    steps: int
    steps_between_syncs: int
    overlap_steps: int
    restored: bool
    brought_model: bool


@lib.LogFunction
def _write_log(_context, level, line):
    log.log(_LEVELS.get(level, logging.ERROR), "%s", line.decode("utf-8", "replace"))


class _Interruptible:
    """Runs calls that block on a thread of its own while the caller waits for signals, too.

    Python handles a signal in the main thread between two instructions, so a main thread inside
    the library would not hear Ctrl-C. Other threads call directly.
    """

    def __init__(self) -> None:
        self._jobs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._process = os.getpid()
        self.busy = False

    def run(self, function: Callable[[], Any], cancel: Optional[Callable[[], None]],
            stop: Optional["Stop"] = None) -> Any:
        """`stop`, too, ends the wait for `function`, which goes on without anybody: in any thread.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        if os.getpid() != self._process or not (in_main_thread or stop is not None):
            return function()  # A forked child has no such thread, and the library refuses it.
        if stop:
            raise stop.error
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, args=(self._jobs,), daemon=True,
                                            name="causeway")
            self._thread.start()
        outcome: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        if stop is not None:
            stop.tell(outcome)
        self.busy = True
        self._jobs.put((function, outcome))
        try:
            result, error = self._wait(outcome)
        except BaseException:
            if cancel is not None:
                cancel()
                outcome.get()
                self.busy = False
            raise
        self.busy = False
        if isinstance(error, errors.Error):
            raise error.with_traceback(None)  # Its message says it all.
        if error is not None:
            raise error
        return result

    @staticmethod
    def _wait(outcome: "queue.SimpleQueue[Any]") -> Any:
        while True:
            try:
                # A signal just before this wait does not end it: Python looks for one between two.
                return outcome.get(timeout=_LOOK_FOR_SIGNALS_S)
            except queue.Empty:
                pass

    @staticmethod
    def _serve(jobs) -> None:
        while True:
            function, outcome = jobs.get()
            if function is None:
                return
            try:
                outcome.put((function(), None))
            except BaseException as error:  # Raised again by the caller.
                outcome.put((None, error))
            del function, outcome

    def post(self, function: Callable[[], Any]) -> None:
        """Runs it there without waiting for it."""
        self._jobs.put((function, queue.SimpleQueue()))

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put((None, None))


class Stop:
    """The wish that a site leaves, before and while it joins. From any thread, and in a signal's
    handler: nothing here waits for a lock."""

    def __init__(self) -> None:
        self.error: Optional[errors.Cancelled] = None
        self._outcome: Optional["queue.SimpleQueue[Any]"] = None

    def __bool__(self) -> bool:
        return self.error is not None

    def set(self, who: str) -> None:
        if self.error is None:
            self.error = errors.Cancelled(f"{who} ended the join: this site takes no part. To take "
                                          "part later, make a new one")
        if self._outcome is not None:
            self._outcome.put((None, self.error))

    def tell(self, outcome: "queue.SimpleQueue[Any]") -> None:
        """`outcome` gets the error, now or later."""
        self._outcome = outcome
        if self:
            outcome.put((None, self.error))


_called_in: Optional[int] = None  # The process that has gRPC's threads.


def _check_process() -> None:
    """A child that is forked by a process with gRPC's threads has none, and would wait for ever."""
    global _called_in
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise errors.Refused(
            "multiprocessing spawned this process (a data loader's, for instance), and it runs the main program again, "
            "join and all: put that program under if __name__ == \"__main__\":")
    _called_in = _called_in or os.getpid()
    if _called_in != os.getpid():
        raise errors.Refused(
            "this process was forked by one that had a site, or asked for a run: it cannot have "
            "another. Start it by spawn or forkserver (multiprocessing.get_context), or before")


def fill_options(coordinator: str, site_id: str, options: Dict[str, Any]) -> lib.OptionsStruct:
    """`options` are fields of causeway_site_options, checked; others have the library's default."""
    _check_process()
    struct = lib.OptionsStruct()
    struct.size = ctypes.sizeof(lib.OptionsStruct)
    struct.log = _write_log
    for name, value in {"coordinator": coordinator, "id": site_id, **options}.items():
        setattr(struct, name, value.encode() if isinstance(value, str) else value)
    return struct


def describe(coordinator: str, site_id: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """The run as the coordinator describes it. Arguments are checked."""
    struct = fill_options(coordinator, site_id, options)
    # Nothing can end this call but its time limit, so an interrupt leaves it behind.
    text = _Interruptible().run(
        lambda: lib.call_for_text("causeway_describe", ctypes.byref(struct)), None)
    return json.loads(text)


class Placed(NamedTuple):
    """Where values `begin` .. `end` of a tensor, row-major, lie on a CUDA device, without gaps."""

    address: int
    tensor: int
    begin: int
    end: int
    type: int  # FLOAT32, BFLOAT16 or FLOAT16 of causeway_site.h.
    device: int


def device_values(values: Sequence[Placed]) -> Any:
    return (lib.DeviceValuesStruct * max(1, len(values)))(*values)


class DeviceArena:
    """In place of the arena where the tensors are on devices. `streams` are the trainer's, one of each."""

    def __init__(self, session: "Handle") -> None:
        self._session = session

    def _fragments(self, fragments: Sequence[int]) -> Any:
        return (ctypes.c_int32 * max(1, len(fragments)))(*fragments)

    def gather(self, fragments: Sequence[int], streams: Sequence[int]) -> None:
        """Takes what the coming `step` reads from the tensors."""
        lib.call("causeway_site_gather", self._session.site, self._fragments(fragments),
                 len(fragments), (ctypes.c_void_p * len(streams))(*streams))

    def scatter(self, fragments: Sequence[int], streams: Sequence[int], published: bool = False) -> None:
        """Writes local values, or published ones, to the tensors."""
        lib.call("causeway_site_scatter", self._session.site, self._fragments(fragments),
                 len(fragments), int(published), (ctypes.c_void_p * len(streams))(*streams))

    def move(self, values: Sequence[Placed]) -> None:
        """They lie there from now on."""
        lib.call("causeway_site_move", self._session.site, device_values(values), len(values))


def _tensor_table(tensors: Sequence[Tuple[str, Sequence[int]]]) -> Any:
    table = (lib.TensorStruct * max(1, len(tensors)))()
    for entry, (name, shape) in zip(table, tensors):
        entry.name = name.encode()
        entry.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        entry.rank = len(shape)
    return table


class Handle:
    """A site of the library: what a process has of it that joined, and one that follows.

    Args:
        site: freed when this is.
        calls: where its calls run that block.
        links: to the other processes, which serve this site alone; None: there are none.
    """

    def __init__(self, site: ctypes.c_void_p, calls: Optional[_Interruptible],
                 links: Optional[Links]) -> None:
        self.site = site
        self._free = weakref.finalize(self, _free, site, calls, links)
        if links is not None:
            links.free_site = self._free
        info = lib.InfoStruct(size=ctypes.sizeof(lib.InfoStruct))
        lib.call("causeway_site_describe", site, ctypes.byref(info))
        self.info = Info(info.fragments, info.arena_values, info.parameters, info.steps,
                         info.steps_between_syncs, info.overlap_steps, bool(info.restored),
                         bool(info.brought_model))

    def pieces(self, rank: int) -> List[Owned]:
        """What process `rank` of a site of several owns, or one of several devices, in the arena's order."""
        return [Owned(p.begin, p.end, p.fragment)
                for p in lib.call_for_list("causeway_site_pieces", lib.PieceStruct, self.site, rank)]

    def _array(self, address: int) -> Any:
        array = (ctypes.c_float * self.info.arena_values).from_address(address)
        array.session = self  # Whoever uses the memory keeps it.
        return array

    def arena(self) -> Any:
        """All values of the run on the host, fp32, as a ctypes array that lives as long as this,
        of which a process uses what it owns; a DeviceArena where the tensors are on a device."""
        address = lib.load().causeway_site_arena(self.site)
        return self._array(address) if address else DeviceArena(self)

    def published(self) -> Any:
        """The published copy, equally long. `Session.step` changes it. None where the tensors are on
        a device."""
        if not lib.load().causeway_site_arena(self.site):
            return None
        values = ctypes.c_void_p()
        lib.call("causeway_site_published", self.site, ctypes.byref(values))
        return self._array(values.value)


class Follower(Handle):
    """A process of a site that another one joins. The library does its part by itself, while the
    other is inside a call.

    Args:
        options: further fields of causeway_site_options.
        tensors: as of the process that joins.
        links: to that one.
        start: what it handed out.

    Raises:
        errors.Error: the library cannot follow.
    """

    def __init__(self, options: Dict[str, Any], tensors: Sequence[Tuple[str, Sequence[int]]],
                 links: Links, start: bytes) -> None:
        struct = fill_options("", "", options)
        links.fill(struct)
        links.run()
        try:
            site = ctypes.c_void_p()
            lib.call("causeway_site_follow", ctypes.byref(struct), _tensor_table(tensors), len(tensors),
                     start, len(start), ctypes.byref(site))
            super().__init__(site, None, links)
        except BaseException:
            links.close()
            raise
        self._links = links
        links.kept = self  # The one that joined may save a state when nobody here has this any more.

    def has_left(self) -> None:
        """In good order: its values are still there for the one that joined."""
        self._links.lasts = True


class Session(Handle):
    """A joined site. One thread at a time calls its methods.

    Args:
        coordinator: HOST:PORT.
        site_id: this site's name.
        options: further fields of causeway_site_options.
        tensors: names and shapes of what is trained.
        state: what `save` gave, or None.
        initial_values: writes values of a tensor, from an offset on, to a one-dimensional array,
            if the run takes the model from this site.
        links: to the other processes of the site, each of which owns a share of the values.
        start: hands out to them what they follow by.
        stop: ends the join while it is under way.

    Raises:
        errors.Cancelled: `stop` did so.
        errors.Error: the run does not take the site, or cannot be reached.
    """

    def __init__(self, coordinator: str, site_id: str, options: Dict[str, Any],
                 tensors: Sequence[Tuple[str, Sequence[int]]], state: Optional[np.ndarray],
                 initial_values: Callable[[int, int, np.ndarray], None], stop: Stop,
                 links: Optional[Links] = None, start: Optional[Callable[[bytes], None]] = None) -> None:
        failure: List[BaseException] = []
        serving = threading.Lock()
        abandoned = threading.Event()

        def called(function: Callable[[], None]) -> int:
            try:
                with serving:
                    if abandoned.is_set():
                        return 1
                    function()
                return 0
            except BaseException as error:  # Must not cross the border; raised below.
                failure.append(error)
                return 1

        @lib.ValuesFunction
        def write_values(_context, index, offset, count, values):
            return called(lambda: initial_values(index, offset, np.ctypeslib.as_array(values, (count,))))

        @lib.StartFunction
        def start_others(_context, data, size):
            def hand_out() -> None:
                start(ctypes.string_at(data, size))
                links.run()

            return called(hand_out)

        struct = fill_options(coordinator, site_id, options)
        struct.initial_values = write_values
        if links is not None:
            links.fill(struct)
            struct.start = start_others
        given_up = ctypes.c_int32(0)
        struct.stop = ctypes.pointer(given_up)
        table = _tensor_table(tensors)
        bytes_of_state = None if state is None else np.ascontiguousarray(state, dtype=np.uint8)
        site = ctypes.c_void_p()
        joined = threading.Event()

        def leave_again() -> None:
            try:
                lib.call("causeway_site_leave", site, lib.DRAINED, None)
            finally:
                _free(site, None, links)

        def join() -> None:
            try:
                lib.call("causeway_site_join", ctypes.byref(struct), table, len(tensors),
                         None if bytes_of_state is None else bytes_of_state.ctypes.data,
                         0 if bytes_of_state is None else bytes_of_state.nbytes, ctypes.byref(site))
            except BaseException:
                if links is not None:
                    links.close()
                raise
            with serving:
                joined.set()
                if not abandoned.is_set():
                    return
            leave_again()

        self._calls = _Interruptible()
        try:
            # There is no site to cancel yet. A join that nobody waits for any more ends by itself.
            self._calls.run(join, None, stop)
        except BaseException as error:
            given_up.value = 1
            with serving:
                abandoned.set()
                if joined.is_set():
                    self._calls.post(leave_again)
            self._calls.close()
            if failure and error is not stop.error and isinstance(error, errors.Error):
                raise failure[0] from error
            raise
        self.touched: List[int] = []  # What `next` returned last.
        self._orders = lib.OrdersStruct(size=ctypes.sizeof(lib.OrdersStruct))
        self._passed = ctypes.c_int32()
        super().__init__(site, self._calls, links)

    def _cancel(self) -> None:
        lib.load().causeway_site_cancel(self.site)

    def ranges(self, fragment: int) -> List[Range]:
        """The pieces of a fragment."""
        return [Range(r.tensor, r.tensor_offset, r.arena_offset, r.count)
                for r in lib.call_for_list("causeway_site_ranges", lib.RangeStruct, self.site, fragment)]

    def local(self, span: Range) -> np.ndarray:
        """Exact local values, wherever they are."""
        values = np.empty(span.count, np.float32)
        lib.call("causeway_site_local", self.site, lib.RangeStruct(*span), 0, values.ctypes.data)
        return values

    def set_local(self, span: Range, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values, np.float32)
        lib.call("causeway_site_local", self.site, lib.RangeStruct(*span), 1, values.ctypes.data)

    def changed(self) -> List[int]:
        """Fragments whose values in the arena are to be taken over after a join."""
        return lib.call_for_fragments("causeway_site_changed", self.site)

    def ready(self) -> None:
        lib.call("causeway_site_ready", self.site)

    def wait(self, timeout_s: float = -1) -> Orders:
        """Waits until training may go on or is over."""
        try:
            # Most often it may go on: then nothing is to be interrupted.
            lib.call("causeway_site_wait", self.site, 0, ctypes.byref(self._orders))
        except errors.Unavailable as error:
            if error.code != "DEADLINE_EXCEEDED" or timeout_s == 0:
                raise
            self._calls.run(lambda: lib.call("causeway_site_wait", self.site, timeout_s,
                                             ctypes.byref(self._orders)), self._cancel)
        return self._said()

    def _said(self) -> Orders:
        orders = self._orders
        return Orders(bool(orders.go), bool(orders.finished), bool(orders.drain),
                      bool(orders.anew), orders.data_slot, orders.next_draw, orders.step,
                      orders.next_step, orders.end_step)

    def pass_step(self, tokens: int, draws: int) -> Optional[Orders]:
        """After an optimizer step at which nothing is due: `step`, and orders as of now. None, and nothing has changed:
        something is due, and `next` is to come first."""
        self._passed.value = 0
        lib.call("causeway_site_pass", self.site, tokens, draws, ctypes.byref(self._passed), ctypes.byref(self._orders))
        if not self._passed.value:
            return None
        self.touched = []
        return self._said()

    @property
    def has_passed(self) -> bool:
        """Whether the step of `pass_step` was done, though that raised an error."""
        return bool(self._passed.value)

    def next(self) -> List[int]:
        """Fragments whose local values the coming `step` reads."""
        self.touched = lib.call_for_fragments("causeway_site_next", self.site)
        return self.touched

    def step(self, tokens: int, draws: int) -> List[int]:
        """After an optimizer step and `next`. Fragments whose values in the arena have changed."""
        def call() -> List[int]:
            return lib.call_for_fragments("causeway_site_step", self.site, tokens, draws)

        # Where nothing is due, nothing is waited for.
        return self._calls.run(call, self._cancel) if self.touched else call()

    def report(self, loss: Optional[float], step_s: Optional[float]) -> None:
        lib.call("causeway_site_report", self.site, math.nan if loss is None else loss,
                 math.nan if step_s is None else step_s)

    def report_evaluation(self, loss: float) -> None:
        lib.call("causeway_site_report_evaluation", self.site, loss)

    def save(self) -> np.ndarray:
        """A continuation's state, as bytes."""
        state = ctypes.c_void_p()
        size = ctypes.c_size_t()
        self._calls.run(lambda: lib.call("causeway_site_save", self.site, ctypes.byref(state),
                                         ctypes.byref(size)), self._cancel)
        memory = (ctypes.c_uint8 * size.value).from_address(state.value or 0)
        weakref.finalize(memory, lib.load().causeway_state_free, state)
        return np.frombuffer(memory, dtype=np.uint8)

    def saved(self, step: int) -> None:
        lib.call("causeway_site_saved", self.site, step)

    def finish(self) -> List[int]:
        """Merges what is in flight. Fragments whose values in the arena have changed."""
        return self._calls.run(lambda: lib.call_for_fragments(
            "causeway_site_finish", self.site), self._cancel)

    def leave(self, reason: int, detail: str = "") -> None:
        if self._calls.busy:
            return  # An earlier leave was interrupted and is still inside the library.
        self._calls.run(lambda: lib.call("causeway_site_leave", self.site, reason,
                                         detail.encode()), None)

    def drain(self) -> None:
        """From any thread: the site is to leave."""
        lib.load().causeway_site_drain(self.site)

    def summary(self) -> Dict[str, Any]:
        return json.loads(lib.call_for_text("causeway_site_summary", self.site))

    def config(self) -> Dict[str, Any]:
        return json.loads(lib.call_for_text("causeway_site_config", self.site))


_in_use: List[Optional[Links]] = []  # Of sites that are never freed.


def _free(site, calls, links) -> None:
    """`links` last until then."""
    if calls is None or not calls.busy:
        lib.load().causeway_site_free(site)
    else:  # The library is still in use: the process is about to end.
        _in_use.append(links)
    if calls is not None:
        calls.close()
