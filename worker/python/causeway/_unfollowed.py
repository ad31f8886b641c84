"""Finds programs that go on without a step of their site."""

import time


class Unfollowed:
    """What a program has done with its site since the site's last step."""

    def __init__(self) -> None:
        self._said = False
        self.reset()

    def reset(self) -> None:
        self._calls, self._changes, self._since = 0, 0, time.monotonic()

    def call(self, changed: bool) -> bool:
        """`changed`: what is trained is another than at the call before. True once: then no step is to be expected."""
        self._calls += 1
        self._changes += changed
        is_long = self._calls >= 20 and time.monotonic() - self._since >= 1800
        if self._said or not (is_long or self._calls >= 1000 or self._changes >= 4):
            return False
        self._said = True
        return True
