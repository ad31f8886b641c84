"""SIGTERM and SIGHUP, in a program that has no handlers of its own: its open sites are drained.

Where the program has a handler, or sets one later, that one rules; so does a signal that was ignored
when the program began. Children that are forked have no sites, and end as ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import weakref
from typing import Any

log = logging.getLogger("causeway")
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_open: Any = weakref.WeakSet()


def _end(number: int, _frame: Any) -> None:
    name = signal.Signals(number).name
    asked = [site for site in _open if not site._stop]
    for site in asked:
        site._drain(name)
        with contextlib.suppress(RuntimeError):  # It may interrupt the writing of another line.
            log.warning("site %s: %s: it leaves the run in good order (should_stop becomes true). "
                        "A second signal ends the program at once", site._id, name)
    if not asked:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _restore() -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=lambda: (_open.clear(), _restore()))


def watch(site: Any) -> bool:
    """Drains `site` at a signal, until `forget`. False where SIGTERM does something else."""
    if threading.current_thread() is not threading.main_thread():
        return False  # Python sets handlers there only.
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    _open.add(site)
    return signal.getsignal(signal.SIGTERM) is _end


def forget(site: Any) -> None:
    _open.discard(site)
    if not _open and threading.current_thread() is threading.main_thread():
        _restore()
