"""SIGTERM, SIGHUP and what batch systems send, in a program that has no handlers of its own: its open sites are drained.
Not SIGQUIT, which is for programs that hang.

Where the program has a handler, or sets one later, that one rules; so does a signal that was ignored
when the program began. Children that are forked have no sites, and end as ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import weakref
from typing import Any, Dict

log = logging.getLogger("causeway")
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
_open: Any = weakref.WeakSet()
_libc = ctypes.CDLL(None)
_set: Dict[int, int] = {}  # The process's handler of a signal once Python has set `_end`.
_over_time = False  # SIGXCPU came, and comes every second until the hard limit.


def _handler(number: int) -> int:
    """The process's own, whoever set it: faulthandler and native libraries set theirs past Python."""
    action = ctypes.create_string_buffer(512)  # A struct sigaction begins with it.
    if _libc.sigaction(int(number), None, action) != 0:
        return 0
    return int.from_bytes(action.raw[:ctypes.sizeof(ctypes.c_void_p)], sys.byteorder)


def _end(number: int, _frame: Any) -> None:
    global _over_time
    _over_time = _over_time or number == signal.SIGXCPU
    name = signal.Signals(number).name
    asked = [site for site in _open if not site._stop]
    for site in asked:
        site._drain(name)
        with contextlib.suppress(RuntimeError):  # It may interrupt the writing of another line.
            log.warning("site %s: %s: it leaves the run in good order (should_stop becomes true). "
                        "A second signal ends the program at once", site._id, name)
    if not asked and number != signal.SIGXCPU:  # Which comes every second.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _restore() -> None:
    for number in _SIGNALS:
        if _over_time and number == signal.SIGXCPU:
            continue
        if signal.getsignal(number) is _end and _handler(number) == _set.get(number):
            signal.signal(number, signal.SIG_DFL)


def _forked() -> None:
    global _over_time
    _over_time = False  # Its processor time begins anew.
    _open.clear()
    _restore()


def _requeues() -> bool:
    """Lightning under Slurm saves and queues itself again at SIGUSR1, unless it finds a handler."""
    return "SLURM_JOB_ID" in os.environ and not {"lightning.pytorch", "pytorch_lightning"}.isdisjoint(sys.modules)


os.register_at_fork(after_in_child=_forked)


def watch(site: Any) -> bool:
    """Drains `site` at a signal, until `forget`. False where SIGTERM does something else."""
    if threading.current_thread() is not threading.main_thread():
        return False  # Python sets handlers there only.
    for number in _SIGNALS:
        if number == signal.SIGUSR1 and _requeues():
            continue
        if signal.getsignal(number) == signal.SIG_DFL and _handler(number) == int(signal.SIG_DFL):
            signal.signal(number, _end)
            _set[number] = _handler(number)
    _open.add(site)
    return signal.getsignal(signal.SIGTERM) is _end


def forget(site: Any) -> None:
    _open.discard(site)
    if not _open and threading.current_thread() is threading.main_thread():
        _restore()
