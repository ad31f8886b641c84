"""What sites of numpy and of PyTorch have in common: the order of calls around a training step."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Protocol, Sequence
from typing import Tuple, Union

import numpy as np

from causeway import _library as lib
from causeway import errors
from causeway._session import Info, Orders, Range, Session

log = logging.getLogger("causeway")
PathLike = Union[str, "os.PathLike[str]"]
_STATE_MAGIC = b"CWSITE01"


class Values(Protocol):
    """The trained values, wherever they are. Every process of a site calls all methods alike."""

    def table(self) -> List[Tuple[str, Tuple[int, ...]]]:
        """Names and shapes, in the model's order."""

    def attach(self, arena: Any, fragments: Sequence[Sequence[Range]]) -> None:
        """Says where in the arena they belong. `arena` is None where there is no session."""

    def initial(self, tensor: int, offset: int, values: Optional[np.ndarray], count: int) -> None:
        """Writes `count` values of a tensor from an offset on to `values`."""

    def read(self, fragments: Sequence[int]) -> None:
        """Parameters to arena."""

    def write(self, fragments: Sequence[int]) -> None:
        """Arena to parameters, in place."""

    def settle(self) -> None:
        """Waits until nothing reads the arena any more."""

    @contextlib.contextmanager
    def replaced(self, published: Any) -> Iterator[None]:
        """The parameters have the published values inside, and their own again after it."""

    def kept(self) -> np.ndarray:
        """What a continuation needs beside the parameters, as bytes."""

    def restore(self, kept: np.ndarray, but: Sequence[int]) -> None:
        """Takes what `kept` gave, after `attach`, but for fragments that have newer values."""


class Team:
    """The processes of a site: one."""

    leads = True

    def lead(self, function: Callable[[], Any]) -> Any:
        """What `function` returns or raises in the process that leads, in all of them."""
        return function()

    def count(self, tokens: int, draws: int) -> Tuple[int, int]:
        """Sums over the processes."""
        return tokens, draws

    def serve_initial(self, values: Values, join: Callable[[Callable[..., None]], Any]) -> Any:
        """`join` in the leader, with all processes handing out initial values meanwhile."""
        return join(lambda tensor, offset, out: values.initial(tensor, offset, out, out.size))

    def leave(self) -> None:
        """This process takes part no more."""


class _Start(NamedTuple):
    info: Info
    fragments: List[List[Range]]
    changed: List[int]


class _Outcome(NamedTuple):
    changed: List[int]
    orders: Orders


def tls_options(tls: Union[None, PathLike, Dict[str, PathLike]]) -> Dict[str, Any]:
    """Options of a folder that deploy/make_certificates made, or of a dict with the keys ca, cert,
    key, token and server_name."""
    if tls is None:
        return {}
    if isinstance(tls, dict):
        names = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_key", "token": "token_file",
                 "server_name": "tls_server_name"}
        unknown = set(tls) - set(names)
        if unknown:
            raise errors.InvalidArgument(
                f"tls has the key {sorted(unknown)[0]!r}; known are {', '.join(names)}",
                "INVALID_ARGUMENT")
        return {names[key]: os.fspath(value) for key, value in tls.items()}
    folder = pathlib.Path(tls)
    files = {"tls_ca": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem",
             "token_file": "token"}
    found = {name: str(folder / file) for name, file in files.items() if (folder / file).exists()}
    if "tls_ca" not in found:
        raise errors.InvalidArgument(
            f"{folder} must be a folder with ca.pem, and cert.pem and key.pem or token, as "
            "deploy/make_certificates makes one for every worker; ca.pem is not there",
            "INVALID_ARGUMENT")
    return found


class BaseSite:
    """A site of a run. `causeway.Site` and `causeway.torch.Site` make one of arrays and models.

    The site connects when its `with` block begins, or `open` is called: the parameters then have
    the run's values, and the call returns when training may start. `step` follows every optimizer
    step. The block's end leaves the run: finished if the budget is spent, failed if an exception
    ends it, and drained otherwise (early end of the data, Ctrl-C), which hands over what is in
    flight. Afterwards `published`, `summary` and `state_dict` still work.

    Not for several threads at once, but for `drain`.
    """

    def __init__(self, coordinator: str, values: Values, *, id: str,
                 tls: Union[None, PathLike, Dict[str, PathLike]] = None, data_slot: bool = False,
                 tokens_per_step: int = 1, state: Optional[Dict[str, Any]] = None,
                 team: Optional[Team] = None, **options: Any) -> None:
        known = {name for name, _ in lib.OptionsStruct._fields_}
        for name in options:
            if name not in known or name.startswith(("tls_", "log", "initial", "size")):
                raise errors.InvalidArgument(
                    f"{name} is no option of a site; see causeway.Site for those that are",
                    "INVALID_ARGUMENT")
        self._coordinator = coordinator
        self._id = id
        self._options = {"data_slot": int(data_slot), **tls_options(tls), **options}
        self._values = values
        self._team = team or Team()
        self._tokens_per_step = tokens_per_step
        self._tokens = 0
        self._draws: Optional[int] = None
        self._state: Optional[np.ndarray] = None
        self._saved_step: Optional[int] = None
        self._session: Optional[Session] = None  # In the process that leads.
        self._orders: Optional[Orders] = None
        self._should_save = False
        self._info: Optional[Info] = None
        self._closed = False
        self._replaced = False
        if state is not None:
            self.load_state_dict(state)

    # --- Joining and leaving --------------------------------------------------------------------

    def open(self) -> None:
        """Joins the run, takes its values over and waits until training may start.

        Raises:
            Refused, Unavailable, NotAuthorized: as their messages say. Nothing has changed.
        """
        if self._info is not None:
            raise self._misuse("this site has joined already; make a new one to join again")
        try:
            start = self._team.serve_initial(self._values, self._join)
            self._info = start.info
            arena = self._session.arena() if self._session else None
            self._values.attach(arena, start.fragments)
            if start.info.restored and self._state is not None:
                self._values.restore(_split_state(self._state)[1], start.changed)
            self._state = None
            self._values.write(start.changed)
            self._on_open()
            self._take(self._team.lead(self._begin))
        except BaseException as error:
            self.close(error)
            raise

    def _join(self, initial_values: Callable[..., None]) -> _Start:
        state = None if self._state is None else _split_state(self._state)[0]
        session = Session(self._coordinator, self._id, self._options, self._values.table(), state,
                          initial_values)
        self._session = session
        return _Start(session.info,
                      [session.ranges(fragment) for fragment in range(session.info.fragments)],
                      session.changed())

    def _begin(self) -> _Outcome:
        self._values.settle()
        self._session.ready()
        orders = self._session.wait()
        return _Outcome(self._session.changed() if orders.anew else [], orders)

    def _on_open(self) -> None:
        """Hooks what a subclass wants hooked."""

    def _on_close(self) -> None:
        """Takes the hooks out again."""

    def close(self, error: Optional[BaseException] = None) -> None:
        """Leaves the run, as the `with` block's end does: `error` is what ended training.

        Rounds in flight are merged first if the budget is spent.
        """
        if self._closed:
            return
        self._closed = True
        self._on_close()
        failure = error
        try:
            if error is None and self.finished:
                self._values.write(self._team.lead(self._finish))
        except errors.Cancelled:
            self._orders = self._orders._replace(finished=False, drain=True)
        except BaseException as unfinished:
            failure = unfinished
            raise
        finally:
            try:
                if self._session is not None:
                    self._leave(failure)
            except errors.Error as unheard:
                if failure is None:
                    raise
                log.error("leaving the run: %s", unheard.message)
            finally:
                self._team.leave()

    def _finish(self) -> List[int]:
        self._values.settle()
        return self._session.finish()

    def _leave(self, error: Optional[BaseException]) -> None:
        if error is None and self._orders is not None and self._orders.finished:
            self._session.leave(lib.FINISHED)
        elif error is None or isinstance(error, (KeyboardInterrupt, errors.Cancelled)):
            self._session.leave(lib.DRAINED)
        else:
            text = error.message if isinstance(error, errors.Error) else \
                f"{type(error).__name__}: {error}"
            self._session.leave(lib.FAILED, text)

    def __enter__(self):
        if self._info is None:
            self.open()
        return self

    def __exit__(self, _kind, error, _traceback) -> None:
        self.close(error)

    # --- Training -------------------------------------------------------------------------------

    def add(self, tokens: int, draws: int = 0) -> None:
        """Counts tokens (and draws) of the optimizer step that is being made, in this process.

        May be called for every micro-batch. Deltas are weighed by tokens. Without it, a step counts
        `tokens_per_step` tokens. Draws default to the tokens.
        """
        self._tokens += int(tokens)
        if draws:
            self._draws = (self._draws or 0) + int(draws)

    def step(self, tokens: Optional[int] = None, draws: Optional[int] = None) -> bool:
        """Follows an optimizer step: sends and merges what is due, and waits while the run pauses.

        Args:
            tokens: trained by this process in this step; default: what `add` counted, or
                `tokens_per_step`.
            draws: how many draws of the data were used up, with `data_slot`; default: as tokens.

        Returns:
            True if training goes on: `not should_stop`.

        Raises:
            NotFinite: a trained value is not finite.
            Unavailable, Refused, DataLoss, Aborted, ...: the site takes part no more. The message
                says what to do.
        """
        if self._info is None or self._closed:
            raise self._misuse("step() needs a site that has joined: use it in its with block")
        if self._replaced:
            raise self._misuse("step() inside published(): evaluate there, train outside")
        if self.should_stop:
            raise self._misuse("the run wants no more steps of this site: end the training loop "
                               "when should_stop is true")
        if tokens is None:
            tokens = self._tokens or self._tokens_per_step
        if draws is None:
            draws = tokens if self._draws is None else self._draws
        self._tokens, self._draws = 0, None
        tokens, draws = self._team.count(tokens, draws)
        touched = self._team.lead(lambda: self._session.next())
        self._values.read(touched)
        outcome = self._team.lead(lambda: self._after_step(tokens, draws, touched))
        self._take(outcome)
        return not self.should_stop

    def _after_step(self, tokens: int, draws: int, touched: Sequence[int]) -> _Outcome:
        self._values.settle()
        try:
            changed = set(self._session.step(tokens, draws))
        except errors.InvalidArgument as error:
            raise self._name_what_is_not_finite(error, touched) from None
        except errors.Cancelled:
            # The step is done, and what it waited for stays in flight.
            return _Outcome([], self._orders._replace(drain=True, step=self._orders.next_step))
        orders = self._session.wait()
        if orders.anew:
            changed.update(self._session.changed())
        return _Outcome(sorted(changed), orders)

    def _name_what_is_not_finite(self, error: errors.Error, touched: Sequence[int]) -> errors.Error:
        arena = np.frombuffer(self._session.arena(), dtype=np.float32)
        table = self._values.table()
        for fragment in touched:
            for piece in self._session.ranges(fragment):
                part = arena[piece.arena_offset:piece.arena_offset + piece.count]
                if not np.isfinite(part).all():
                    return errors.NotFinite(
                        f"{table[piece.tensor][0]} has a value that is not finite after "
                        f"step {self._orders.next_step}; nothing of it was sent. Lower the "
                        "learning rate, clip gradients, or look at the data of that step, and "
                        f"resume from a checkpoint ({error.message})", error.code)
        return error

    def _take(self, outcome: _Outcome) -> None:
        self._values.write(outcome.changed)
        former, self._orders = self._orders, outcome.orders
        if former is not None and (outcome.orders.anew or
                                   outcome.orders.data_slot != former.data_slot):
            self._should_save = True

    @property
    def should_stop(self) -> bool:
        """True when the budget is spent, or the coordinator or `drain` wants this site to leave."""
        return self._orders is not None and (self._orders.finished or self._orders.drain)

    @property
    def should_save(self) -> bool:
        """True from when the run gave this site other values or another part of the data, until
        `state_dict`: a checkpoint from before would send other bytes than others have by then."""
        return self._should_save

    @property
    def finished(self) -> bool:
        """True when the run's budget is spent."""
        return self._orders is not None and self._orders.finished

    @property
    def current_step(self) -> int:
        """Steps of the run's schedule that this site has done."""
        return 0 if self._orders is None else self._orders.step

    @property
    def next_step(self) -> int:
        """Step of the schedule at which the next optimizer step ends: for learning rates."""
        return 0 if self._orders is None else self._orders.next_step

    @property
    def total_steps(self) -> int:
        """The run's budget, in steps of the schedule."""
        return 0 if self._info is None else self._info.steps

    @property
    def data_slot(self) -> int:
        """Which part of the shared data this site draws; -1: its own data."""
        return -1 if self._orders is None else self._orders.data_slot

    @property
    def next_draw(self) -> int:
        """Draw of its part of the data that the next step begins with."""
        return 0 if self._orders is None else self._orders.next_draw

    @property
    def info(self) -> Optional[Info]:
        """Facts of the run: fragments, parameters, steps, H and tau; None before joining."""
        return self._info

    def drain(self) -> None:
        """Asks this site to leave, from any thread or a signal's handler.

        `should_stop` becomes true, and waits for answers end soon.
        """
        if self._session is not None:
            self._session.drain()

    def report(self, loss: Optional[float] = None, step_s: Optional[float] = None) -> None:
        """Figures of the step that the next `step` follows, for the status page and metrics."""
        if self._session is not None and not self._closed:
            self._session.report(loss, step_s)

    def report_evaluation(self, loss: float) -> None:
        """The held-out loss of the published values, for the status page and metrics."""
        if self._session is not None and not self._closed:
            self._session.report_evaluation(loss)

    def summary(self) -> Dict[str, Any]:
        """Rounds, bytes, and seconds that steps waited. Empty in processes that do not lead."""
        return self._session.summary() if self._session is not None else {}

    def config(self) -> Dict[str, Any]:
        """The run's configuration. Empty where it does not lead."""
        return self._session.config() if self._session is not None else {}

    # --- Published values and state ---------------------------------------------------------------

    @contextlib.contextmanager
    def published(self) -> Iterator[None]:
        """The parameters have the run's published values inside the block, and their own after it.

        The published values are the run's model: every site has the same. With several processes,
        all of them enter it together.
        """
        if self._info is None:
            raise self._misuse("published() needs a site that has joined")
        if self._replaced:
            raise self._misuse("published() inside published()")
        values = self._session.published() if self._session is not None else None
        self._values.settle()
        self._replaced = True
        try:
            with self._values.replaced(values):
                yield
        finally:
            self._replaced = False

    def _save(self) -> Optional[np.ndarray]:
        """A continuation's state, in the process that leads; None in others."""
        if self._info is None:
            return self._state
        if self._session is None:
            return None
        self._saved_step = self.current_step
        state = self._session.save()
        head = np.frombuffer(_STATE_MAGIC + state.size.to_bytes(8, "little"), dtype=np.uint8)
        return np.concatenate([head, state, self._values.kept()])

    def state_dict(self) -> Dict[str, Any]:
        """What a bit-exact continuation needs beside the model's and the optimizer's state.

        Take all three after the same step. About 4 bytes per parameter, 8 with error feedback.
        """
        self._should_save = False
        state = self._save()
        return {} if state is None else {"state": self._pack(state)}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continues from a `state_dict` when the site joins.

        Model and optimizer are restored by the caller.

        Raises:
            InvalidArgument: the site has joined already, or this is no site's state.
        """
        if self._info is not None:
            raise self._misuse("load_state_dict() must come before the site joins: call it before "
                               "its with block, or hand the state to it as state=")
        if "state" not in state_dict:
            return
        state = self._unpack(state_dict["state"])
        if state.size:
            _split_state(state)
            self._state = state

    def saved(self) -> None:
        """Says that the last `state_dict` is safe on a disk.

        The coordinator then keeps what a restart from it needs, and the run waits for this site
        while it restarts. Without it a restarted site continues from its state only if the run has
        not gone on too far.
        """
        if self._session is not None and not self._closed and self._saved_step is not None:
            self._session.saved(self._saved_step)

    def _pack(self, state: np.ndarray) -> Any:
        return state

    def _unpack(self, state: Any) -> np.ndarray:
        return np.asarray(state, dtype=np.uint8)

    @staticmethod
    def _misuse(message: str) -> errors.Error:
        return errors.InvalidArgument(message, "INVALID_ARGUMENT")


def _split_state(state: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """The library's part of a state, and that of Values."""
    head = state[:16].tobytes()
    length = int.from_bytes(head[8:16], "little")
    if head[:8] != _STATE_MAGIC or length > state.size - 16:
        raise errors.DataLoss("this is no state of a site, or it is cut off: use what state_dict() "
                              "gave, whole", "DATA_LOSS")
    return state[16:16 + length], state[16 + length:]
