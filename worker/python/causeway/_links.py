"""What the libraries of a site's processes say to each other, carried by threads of this package."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import threading
import time
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Protocol, Sequence, Set

import numpy as np

from causeway import _library as lib

# How long a process that ends waits until others have heard of it, and one that follows until the one that
# joined needs it no more.
_END_S, _LAST_S = 10.0, 60.0
_running: Any = weakref.WeakSet()
# Those of all of them: one may be about to throw its own away.
_threads: List[threading.Thread] = []


class Share(NamedTuple):
    """Values `begin` .. `end` of a tensor, row-major, that process `rank` is to own."""

    tensor: int
    begin: int
    end: int
    rank: int


class Carrier(Protocol):
    """Carries messages in order, for several threads at once. RuntimeError: the other is gone."""

    rank: int
    size: int

    def send(self, rank: int, message: Optional[Any]) -> None:
        """`message` is a ctypes array of bytes, which is free once this returns; None: an empty one."""

    def receive(self, rank: int) -> Optional[np.ndarray]:
        """Bytes; None: an empty one."""


class Links:
    """This process's ends of the links between the libraries of a site, which one causeway_site uses.

    Threads of its own carry messages until each end has said that it says no more, or is gone. They
    wait in code of gloo's that must not be left while an interpreter ends. So a process that ends frees
    its site first, and waits until the others have heard of it.

    Attributes:
        free_site: set by who has the site.
        kept: until the other says no more, in a process that follows.
        lasts: whether that one may still ask for something when this process, which follows, ends.

    Args:
        carrier: to and from the other processes.
        shares: which values each process is to own.
    """

    def __init__(self, carrier: Carrier, shares: Sequence[Share]) -> None:
        self.free_site: Callable[[], Any] = lambda: None
        self.kept: Any = None
        self.lasts = False
        self._shares = (lib.ShareStruct * max(1, len(shares)))(*shares)
        self._share_count = len(shares)
        self._carrier = carrier
        others = range(1, carrier.size) if carrier.rank == 0 else (0,)
        self._sending = {rank: threading.Lock() for rank in others}
        self._silent: Set[int] = set()  # To whom an end was said, or cannot be.
        self._threads: List[threading.Thread] = []
        self._process = os.getpid()
        self._links = ctypes.c_void_p()
        lib.call("causeway_links_open", carrier.rank, carrier.size, ctypes.byref(self._links))
        # While it runs its threads have it, and while there is a site, whoever is to free that.
        weakref.finalize(self, _free, self._links, self._process).atexit = False

    def fill(self, options: lib.OptionsStruct) -> None:
        options.links = self._links
        options.shares = self._shares
        options.share_count = self._share_count

    def run(self) -> None:
        """Carries from now on: the others do, too, or are about to."""
        jobs = [self._write, *(functools.partial(self._read, rank) for rank in self._sending)]
        self._threads = [threading.Thread(target=job, daemon=True, name="causeway links") for job in jobs]
        _running.add(self)
        for thread in self._threads:
            thread.start()
        _threads[:] = [thread for thread in _threads if thread.is_alive()] + self._threads

    def close(self) -> None:
        """Says no more, where there is no site that says so once it is freed."""
        lib.load().causeway_links_close(self._links)

    def end(self) -> None:
        """Frees the site and waits for the threads."""
        if os.getpid() != self._process:
            return  # Its parent has the threads.
        if self.lasts:
            _wait(self._threads[1:], _LAST_S)
        self.free_site()
        self.close()
        _wait(self._threads, _END_S)

    def _write(self) -> None:
        rank, message, size = ctypes.c_int32(), ctypes.c_void_p(), ctypes.c_size_t()
        while True:
            lib.call("causeway_links_outgoing", self._links, ctypes.byref(rank), ctypes.byref(message),
                     ctypes.byref(size))
            if rank.value < 0:
                return
            self._say(rank.value, (ctypes.c_uint8 * size.value).from_address(message.value)
                      if size.value else None)

    def _say(self, rank: int, message: Optional[Any]) -> None:
        with self._sending[rank]:
            if rank in self._silent:
                return
            if message is None:
                self._silent.add(rank)
            try:
                self._carrier.send(rank, message)
            except RuntimeError:
                self._silent.add(rank)  # Its reader hears of that, too.

    def _read(self, rank: int) -> None:
        try:
            while (message := self._heard(rank)) is not None:
                lib.call("causeway_links_incoming", self._links, rank, message.ctypes.data, message.size)
        finally:
            lib.call("causeway_links_incoming", self._links, rank, None, 0)
            self._say(rank, None)  # Who says no more hears no more: its own reader may end.
            self.kept = None

    def _heard(self, rank: int) -> Optional[np.ndarray]:
        try:
            return self._carrier.receive(rank)
        except RuntimeError:
            return None  # It is gone.


def _free(links: ctypes.c_void_p, process: int) -> None:
    if os.getpid() == process:
        lib.load().causeway_links_free(links)


def _wait(threads: Sequence[threading.Thread], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _end_all() -> None:
    for links in list(_running):
        links.end()
    _wait(_threads, _END_S)
