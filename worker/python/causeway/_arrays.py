"""Sites whose parameters are numpy arrays."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

import numpy as np

from causeway import _arguments as check
from causeway import errors
from causeway._arguments import PathLike
from causeway._session import Range, describe
from causeway._site import BaseSite


class _Arrays:
    """Values in numpy arrays: there is nothing that reads them later, and nothing beside them."""

    def __init__(self, arrays: Dict[str, np.ndarray]) -> None:
        if not isinstance(arrays, dict):
            raise check.wrong("arrays", "a dict of names and numpy arrays", arrays)
        for name, array in arrays.items():
            check.text("a name in arrays", name)
            if not isinstance(array, np.ndarray) or array.dtype != np.float32 or \
                    not array.flags.c_contiguous or not array.flags.writeable:
                raise check.invalid(
                    f"{name} must be a writeable C-contiguous numpy array of float32; it is "
                    f"{getattr(array, 'dtype', type(array).__name__)}")
        if not arrays:
            raise check.invalid("a site needs at least one array")
        spans = sorted((array.ctypes.data, array.nbytes, name) for name, array in arrays.items() if array.nbytes)
        for (begin, size, name), (after, _, other) in zip(spans, spans[1:]):
            if after < begin + size:
                raise check.invalid(f"{name} and {other} overlap in memory: give each value once")
        self._arrays = arrays
        self._joined = dict(arrays)
        self._flat = [array.reshape(-1) for array in arrays.values()]
        self._arena = np.zeros(0, np.float32)
        self._fragments: Sequence[Sequence[Range]] = []

    def table(self):
        return [(name, array.shape) for name, array in self._joined.items()]

    def _check(self) -> None:
        """Raises Refused if the dict has other arrays than this site trains."""
        for name in [*self._joined, *self._arrays]:
            if (now := self._arrays.get(name)) is not (then := self._joined.get(name)):
                what = "new" if then is None else "gone" if now is None else "another array"
                raise errors.Refused(
                    f"{name} is {what} in arrays: a site trains the same arrays from its making to its end. Write into "
                    "them in place (array += change, array[...] = values), or make a new site")

    def attach(self, here, fragments):
        self._arena = np.frombuffer(here.arena(), dtype=np.float32)
        self._fragments = fragments

    def initial(self, tensor, offset, values, count):
        values[:] = self._flat[tensor][offset:offset + count]

    def _pieces(self, fragments) -> Iterator[Tuple[np.ndarray, Range]]:
        for fragment in fragments:
            for piece in self._fragments[fragment]:
                end = piece.tensor_offset + piece.count
                yield self._flat[piece.tensor][piece.tensor_offset:end], piece

    def stepped(self):
        self._check()

    def read(self, fragments):
        self._check()
        for values, piece in self._pieces(fragments):
            self._arena[piece.arena_offset:piece.arena_offset + piece.count] = values

    def write(self, fragments):
        self._check()
        self._write(fragments, self._arena)

    def _write(self, fragments, source):
        for values, piece in self._pieces(fragments):
            values[:] = source[piece.arena_offset:piece.arena_offset + piece.count]

    def settle(self):
        pass

    @contextlib.contextmanager
    def replaced(self, published):
        everything = range(len(self._fragments))
        self.read(everything)
        self._write(everything, np.frombuffer(published, dtype=np.float32))
        try:
            yield
        finally:
            self.write(everything)

    def not_finite(self, fragments):
        names = list(self._joined)
        return next((names[piece.tensor] for values, piece in self._pieces(fragments)
                     if not np.isfinite(values).all()), None)

    def kept(self):
        return np.zeros(0, np.uint8)

    def restore(self, kept, but):
        pass


class Site(BaseSite):
    """A site whose parameters are numpy arrays, for trainers of any kind.

    >>> with causeway.Site("hub:7070", {"w": w, "b": b}, id="paris") as site:
    ...     while not site.should_stop:
    ...         train_one_step(w, b)                  # in place
    ...         site.step(tokens=4096)                # w and b may have new values afterwards

    Args:
        coordinator: HOST:PORT, or an invitation, as for `causeway.torch.join`.
        arrays: names and values of what is trained: float32, C-contiguous, in the run's order if
            this site brings the model. They are written in place.
        id: this site's name, unique in the run.
        tls: a folder with ca.pem, and cert.pem and key.pem or token (deploy/make_certificates makes
            one for each worker), or a dict of paths with keys ca, cert, key, token, server_name.
        data_slot: True if the sites draw parts of data that they share: `data_slot` and `next_draw`
            then say which. False: the data are this site's own.
        tokens_per_step: what a step counts if `step` and `add` are not told.
        state: what `state_dict` gave, to continue from.
        options: identity, threads, connections, max_upload_mbit, max_download_mbit,
            connect_timeout_s, drain_timeout_s, congestion_control, metrics, output, tensorboard,
            insecure, device and software, as in causeway_site.h.

    Memory: 8 bytes per parameter, and what is in flight.
    """

    def __init__(self, coordinator: str, arrays: Dict[str, np.ndarray], *, id: Optional[str] = None,
                 tls: Union[None, PathLike, Dict[str, PathLike]] = None, data_slot: bool = False,
                 tokens_per_step: int = 1, state: Optional[Dict[str, Any]] = None,
                 **options: Any) -> None:
        options.setdefault("software", "causeway for Python, numpy " + np.__version__)
        super().__init__(coordinator, _Arrays(arrays), id=id, tls=tls, data_slot=data_slot,
                         tokens_per_step=tokens_per_step, state=state, **options)


def describe_run(coordinator: str, *, id: str = "",
                 tls: Union[None, PathLike, Dict[str, PathLike]] = None,
                 **options: Any) -> Dict[str, Any]:
    """Asks a coordinator what its run is: run_id, config, parameters, fragments, awaits_model."""
    return describe(check.text("coordinator", coordinator, "a text, HOST:PORT"),
                    check.text("id", id, may_be_empty=True), {**check.check_tls(tls), **check.check_options(options)})
