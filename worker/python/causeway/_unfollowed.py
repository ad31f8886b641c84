"""Finds programs that go on without a step of their site, or without its join or its end."""

import logging
import weakref
from typing import Any

from causeway import errors

log = logging.getLogger("causeway")
# Writes to one tensor; an optimizer makes one to three at each step, averages that are swapped in and out two.
_CHANGES = 16
_REPORTS = 500


class Unfollowed:
    """What a program has done with its site since the site's last step."""

    def __init__(self) -> None:
        self._said = False
        self.reset()

    def reset(self) -> None:
        self._changes = self._reports = 0

    def call(self, changes: int, reports: bool) -> bool:
        """`changes`: writes to what is trained, as far as they are seen, since the call before; `reports`: the call
        is one of those that are made once a step. True once: then no step is to be expected."""
        self._changes += changes
        self._reports += reports
        if self._said or not (self._changes >= _CHANGES or self._reports >= _REPORTS):
            return False
        self._said = True
        return True


def say_if_unused(owner: Any, site_id: str, what_joins: str) -> Any:
    """Warns when `owner` is thrown away, unless that is detached, or when it is called."""
    return weakref.finalize(owner, log.warning, "site %s never joined its run: %s", site_id, what_joins)


def leave_unended(site: Any) -> None:
    """Has the site of a training leave that another one follows, and that has told nobody of its end."""
    if not site._closed:
        log.warning("site %s: its training begins anew, and the one before did not end (auto_find_batch_size, an "
                    "exception, a notebook's cell): it leaves the run, and joins it again with the run's values",
                    site._id)
        site.close(None if site.finished else errors.Cancelled("training begins anew"))
