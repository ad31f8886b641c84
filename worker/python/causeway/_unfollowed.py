"""Finds programs that go on without a step of their site."""

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
