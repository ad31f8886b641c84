"""What a site asks of its values and of its processes."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from causeway._links import Links, Share
from causeway._session import Handle, Range


class Values(Protocol):
    """The trained values, wherever they are. Every process of a site calls all methods alike."""

    def table(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """Names and shapes, in the model's order."""

    def shares(self) -> List[Share]:
        """What each process is to own. Of a site of several processes."""

    def attach(self, here: Handle, fragments: Sequence[Sequence[Range]]) -> None:
        """Says where in the arena they belong."""

    def initial(self, tensor: int, offset: int, values: Optional[np.ndarray], count: int) -> None:
        """Writes `count` values of a tensor from an offset on to `values`."""

    def stepped(self) -> None:
        """Follows each optimizer step. Nothing reads the arena any more once this returns."""

    def read(self, fragments: Sequence[int]) -> None:
        """Parameters to arena: to those of all processes, once this returns."""

    def write(self, fragments: Sequence[int]) -> None:
        """Arena to parameters, in place. No process needs its arena any more once this returns."""

    def settle(self) -> None:
        """Waits until nothing reads the arena any more."""

    @contextlib.contextmanager
    def replaced(self, published: Any) -> Iterator[None]:
        """The parameters have the published values inside, and their own again after it."""

    def not_finite(self, fragments: Sequence[int]) -> Optional[str]:
        """The name of a tensor of these fragments that has a value, as it was read last, that is
        not finite. In the process that leads."""

    def kept(self) -> np.ndarray:
        """What a continuation needs beside the parameters, as bytes."""

    def restore(self, kept: np.ndarray, but: Sequence[int]) -> None:
        """Takes what `kept` gave, after `attach`, but for fragments that have newer values."""


class Team:
    """The processes of a site: one."""

    leads = True
    size = 1

    def lead(self, function: Callable[[], Any]) -> Any:
        """What `function` returns or raises in the process that leads, in all of them."""
        return function()

    def count(self, *numbers: int) -> Tuple[int, ...]:
        """Sums over the processes."""
        return numbers

    def agree(self, function: Callable[[], Any]) -> Any:
        """What `function` returns here. All processes call it alike; raises in all of them if it raises in one."""
        return function()

    def links(self, values: Values) -> Optional[Links]:
        """To the libraries of the other processes, new ones; None: there are none."""
        return None

    def serve_initial(self, values: Values, join: Callable[..., Any], follow: Callable[[bytes], None]) -> Any:
        """`join` in the leader, with functions that hand out initial values, and what others follow
        by. All processes hand out values meanwhile, and those `follow`."""
        return join(lambda tensor, offset, out: values.initial(tensor, offset, out, out.size), None)

    def leave(self) -> None:
        """This process takes part no more."""

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """All processes take part inside, also those that have left."""
        yield
