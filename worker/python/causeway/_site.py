"""What sites of numpy and of PyTorch have in common: the order of calls around a training step."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import weakref
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from causeway import _arguments as check
from causeway import _library as lib
from causeway import _signals, errors
from causeway._arguments import PathLike
from causeway._session import Follower, Handle, Info, Orders, Range, Session, Stop
from causeway._team import Team, Values
from causeway._unfollowed import Unfollowed, leave_unended, say_if_unused

log = logging.getLogger("causeway")
_STATE_MAGIC = b"CWSITE01"
_LONGEST_S = 365 * 24 * 3600.0
_joined: Any = weakref.WeakSet()
_INTERRUPTED = (" ended the synchronization of a step, and with it this site's part in the run: "
                "close() it; the way on is a new join() with the same id")


# These end training without a failure.
_DRAINING = (KeyboardInterrupt, GeneratorExit, errors.Cancelled)


class _Start(NamedTuple):
    info: Info
    fragments: List[List[Range]]
    changed: List[int]


class _Outcome(NamedTuple):
    changed: List[int]
    orders: Orders


class BaseSite:
    """A site of a run. `causeway.Site` and `causeway.torch.Site` make one of arrays and models.

    The site connects when its `with` block begins, or `open` is called: the parameters then have
    the run's values, and the call returns when training may start. `step` follows every optimizer
    step. The block's end leaves the run: finished if the budget is spent, failed if an exception
    ends it, and drained otherwise (early end of the data, Ctrl-C, sys.exit(0)), which hands over
    what is in flight. Afterwards `published`, `summary` and `state_dict` still work.

    In a site of one process, opened in the main thread, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGXCPU
    call `drain`, unless the program has handlers of its own; a second one ends the program.

    Not for several threads at once, but for `drain`.
    """

    def __init__(self, coordinator: str, values: Values, *, id: Optional[str] = None,
                 tls: Union[None, PathLike, Dict[str, PathLike]] = None, data_slot: bool = False,
                 tokens_per_step: int = 1, state: Optional[Dict[str, Any]] = None,
                 team: Optional[Team] = None, **options: Any) -> None:
        if team is not None and not isinstance(team, Team):
            raise check.invalid("team is no option of a site: group says which processes are one")
        self._given_id, self._id = check.site_id(coordinator, id)
        self._coordinator = coordinator
        slot = check.flag("data_slot", data_slot, ": whether the sites share their data")
        self._options = {"data_slot": int(slot), **check.check_tls(tls),
                         **check.check_options(options)}
        self._values = values
        self._team = team or Team()
        self._tokens_per_step = check.whole("tokens_per_step", tokens_per_step, 1,
                                            check.MOST_TOKENS)
        self._tokens = 0
        self._draws: Optional[int] = None
        self._state: Optional[np.ndarray] = None
        self._saved_step: Optional[int] = None
        self._session: Optional[Session] = None  # In the process that leads.
        self._here: Optional[Handle] = None  # What this process has of the library.
        self._orders: Optional[Orders] = None
        self._should_save = False
        self._info: Optional[Info] = None
        self._closed = False
        self._replaced = False
        self._unfollowed = Unfollowed()
        self._said_loss = False
        self._interrupted = ""  # Why it takes part no more, though it has not left.
        self._stop = Stop()
        if state is not None:
            self.load_state_dict(state)
        self._unopened = say_if_unused(self, self._id, "join() and Site() connect when their with block begins, or "
                                       "open() is called")

    # --- Joining and leaving --------------------------------------------------------------------

    def open(self) -> None:
        """Joins the run, takes its values over and waits until training may start.

        Raises:
            Refused, Unavailable, NotAuthorized: as their messages say. Nothing has changed.
            Cancelled: `drain` was called meanwhile, or before.
        """
        if self._info is not None or self._closed:
            raise check.invalid("this site has joined already; make a new one to join again")
        self._unopened.detach()
        self._take_the_place_of_a_former()
        drained = self._team.size == 1 and _signals.watch(self)
        if self._team.leads and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            log.warning("site %s: Ctrl-C is ignored, since this process was started so (by a "
                        "script, with &): %scausewayctl drain has it leave in good order",
                        self._id, "SIGTERM or " if drained else "")
        try:
            start = self._team.serve_initial(self._values, self._join, self._follow_leader)
            self._info = start.info
            _joined.add(self)
            self._values.attach(self._here, start.fragments)
            if start.info.restored and self._state is not None:
                self._values.restore(_split_state(self._state)[1], start.changed)
            self._state = None
            self._values.write(start.changed)
            self._on_open()
            self._follow(self._team.lead(self._begin))
            self._reset_unfollowed()
        except BaseException as error:
            self.close(error)
            if getattr(error, "code", "") == "ALREADY_EXISTS" and any(one._id == self._id for one in list(_joined)):
                raise errors.Refused(f"a site {self._id} of this process has not left: close() it before another try, as "
                                     "its with block does (find_executable_batch_size, a notebook)", error.code) from None
            raise

    def _take_the_place_of_a_former(self) -> None:
        """One of this thread, or of a thread that has ended: another's trains beside this one."""
        self._thread = threading.current_thread()
        for one in list(_joined):
            if (one._id, one._coordinator) == (self._id, self._coordinator) and \
                    (one._thread is self._thread or not one._thread.is_alive()):
                leave_unended(one)

    def _join(self, initial_values: Callable[..., None], start: Optional[Callable[[bytes], None]]) -> _Start:
        state = None if self._state is None else _split_state(self._state)[0]
        session = Session(self._coordinator, self._given_id, self._options, self._values.table(), state,
                          initial_values, self._stop, self._team.links(self._values), start)
        self._session = self._here = session
        if self._stop:
            session.drain()
        return _Start(session.info,
                      [session.ranges(fragment) for fragment in range(session.info.fragments)],
                      session.changed())

    def _follow_leader(self, start: bytes) -> None:
        self._here = Follower(self._options, self._values.table(), self._team.links(self._values), start)

    def _begin(self) -> _Outcome:
        self._values.settle()
        self._session.ready()
        return self._wait()

    def _wait(self) -> _Outcome:
        self._values.settle()
        orders = self._session.wait()
        return _Outcome(self._session.changed() if orders.anew else [], orders)

    def _follow(self, outcome: _Outcome) -> None:
        """Takes values over until the next step may be trained, or none is wanted."""
        self._take(outcome)
        while self._orders.anew:
            self._take(self._team.lead(self._wait))

    def _on_open(self) -> None:
        """Hooks what a subclass wants hooked."""

    def _on_close(self) -> None:
        """Takes the hooks out again."""

    def close(self, error: Optional[BaseException] = None) -> None:
        """Leaves the run, as the `with` block's end does: `error` is what ended training.

        Rounds in flight are merged first if the budget is spent.
        """
        if error is not None and not isinstance(error, BaseException):
            raise check.wrong("error", "the exception that ended training, or None", error)
        if self._closed:
            return
        if error is None:
            self._notice()
        self._closed = True
        _joined.discard(self)
        self._unopened.detach()
        self._on_close()
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None  # The program has come to its end.
        failure = error
        try:
            if error is None and self.finished:
                # What is still in flight mixes with the values of now.
                self._values.read(self._team.lead(lambda: self._session.next()))
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
                if isinstance(self._here, Follower) and (failure is None or isinstance(failure, _DRAINING)):
                    self._here.has_left()
                self._team.leave()
                _signals.forget(self)

    def _finish(self) -> List[int]:
        self._values.settle()
        return self._session.finish()

    def _leave(self, error: Optional[BaseException]) -> None:
        if error is None and self._orders is not None and self._orders.finished:
            self._session.leave(lib.FINISHED)
        elif error is None or isinstance(error, _DRAINING):
            try:
                self._session.leave(lib.DRAINED)
            except errors.Error as unfinished:
                with contextlib.suppress(errors.Error):
                    self._session.leave(lib.FAILED, unfinished.message)
                raise
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
        tokens = check.whole("tokens", tokens, 0, check.MOST_TOKENS)
        draws = check.whole("draws", draws, 0, check.MOST_TOKENS)
        self._notice()
        self._tokens += tokens
        if draws:
            self._draws = (self._draws or 0) + draws

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
            raise check.invalid("step() needs a site that has joined: use it in its with block")
        if self._replaced:
            raise check.invalid("step() inside published(): evaluate there, train outside")
        if self._interrupted:
            raise check.invalid(self._interrupted)
        if self._stops():
            raise check.invalid("the run wants no more steps of this site: end the training loop "
                                "when should_stop is true")
        tokens = (self._tokens or self._tokens_per_step) if tokens is None else \
            check.whole("tokens", tokens, 0, check.MOST_TOKENS)
        draws = check.whole("draws", draws, 0, check.MOST_TOKENS) if draws is not None else \
            tokens if self._draws is None else self._draws
        self._tokens, self._draws = 0, None
        try:
            self._synchronize(tokens, draws)
        except errors.Error:
            raise
        except BaseException as error:
            # Merged values may be on their way to the parameters: nothing goes on from here.
            kind = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else type(error).__name__
            self._interrupted = kind + _INTERRUPTED
            log.warning("site %s: %s", self._id, self._interrupted)
            raise
        self._reset_unfollowed()
        return not self._stops()

    def _notice(self, reports: bool = False) -> None:
        """Follows calls of a training loop; says it once if they go on and on without a step."""
        if self._orders is None or self._replaced or self._stops() or not self._team.leads:
            return
        if self._unfollowed.call(self._changes(), reports):
            log.warning("site %s has followed no step %s, and its program goes on: what it trains is not "
                        "synchronized. %s", self._id,
                        f"since step {self.current_step}" if self.current_step else "yet", self._who_steps())

    def _reset_unfollowed(self) -> None:
        self._changes()
        self._unfollowed.reset()

    def _changes(self) -> int:
        """Writes to what is trained since the call before, as far as they are seen."""
        return 0

    def _who_steps(self) -> str:
        return "Call site.step() after each optimizer step"

    def _synchronize(self, tokens: int, draws: int) -> None:
        tokens, draws, drains = self._team.count(tokens, draws, int(bool(self._stop)))
        if drains and self._session is not None:
            self._session.drain()  # Another process of this site was asked to.
        self._values.stepped()
        answer = self._team.lead(lambda: self._pass(tokens, draws) or self._session.next())
        if not isinstance(answer, _Outcome):
            touched = answer
            self._values.read(touched)
            answer = self._team.lead(lambda: self._after_step(tokens, draws, touched))
        self._follow(answer)

    def _pass(self, tokens: int, draws: int) -> Optional[_Outcome]:
        """A step at which nothing is due; None: something is."""
        try:
            orders = self._session.pass_step(tokens, draws)
        except errors.Cancelled:
            if self._session.has_passed:  # It was to wait already.
                raise
            return self._cut_short()
        if orders is not None and not (orders.go or orders.finished or orders.drain or orders.anew):
            orders = self._session.wait()
        return orders and _Outcome(self._session.changed() if orders.anew else [], orders)

    def _cut_short(self) -> _Outcome:
        """The step is done, and what it waited for stays in flight."""
        return _Outcome([], self._orders._replace(drain=True, step=self._orders.next_step))

    def _after_step(self, tokens: int, draws: int, touched: Sequence[int]) -> _Outcome:
        self._values.settle()
        try:
            changed = set(self._session.step(tokens, draws))
        except errors.InvalidArgument as error:
            raise self._name_what_is_not_finite(error, touched) from None
        except errors.Cancelled:
            return self._cut_short()
        orders = self._session.wait()
        if orders.anew:
            changed.update(self._session.changed())
        return _Outcome(sorted(changed), orders)

    def _name_what_is_not_finite(self, error: errors.Error, touched: Sequence[int]) -> errors.Error:
        name = self._values.not_finite(touched)
        if name is None:
            return error
        return errors.NotFinite(
            f"{name} has a value that is not finite after step {self._orders.next_step}; nothing of "
            "it was sent. Lower the learning rate, clip gradients, or look at the data of that step, "
            f"and resume from a checkpoint ({error.message})", error.code)

    def _take(self, outcome: _Outcome) -> None:
        if outcome.changed:
            self._values.write(outcome.changed)
        former, self._orders = self._orders, outcome.orders
        if outcome.orders.anew or (former is not None and
                                   outcome.orders.data_slot != former.data_slot):
            self._should_save = True

    @property
    def should_stop(self) -> bool:
        """True when the budget is spent, the coordinator or `drain` wants this site to leave, or it
        takes part no more: it has left, or Ctrl-C ended a wait."""
        self._notice()
        return self._stops()

    def _stops(self) -> bool:
        return self._closed or self._interrupted != "" or \
            (self._orders is not None and (self._orders.finished or self._orders.drain))

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

        `should_stop` becomes true, and waits for answers end soon. A join under way, and a later
        one, raises Cancelled. Any process of a site may call it.
        """
        self._drain("drain()")

    def _drain(self, who: str) -> None:
        self._stop.set(who)
        if self._session is not None:
            self._session.drain()

    def report(self, loss: Optional[float] = None, step_s: Optional[float] = None) -> None:
        """Figures of the step that the next `step` follows, for the status page and metrics."""
        loss = None if loss is None else check.real("loss", loss)
        if loss is not None and not math.isfinite(loss) and not self._said_loss:
            self._said_loss = True
            log.warning("site %s: the loss is %s after step %d, which no page shows: look at the data of that step, "
                        "lower the learning rate, or clip gradients", self._id, loss, self.current_step)
        step_s = None if step_s is None else check.real("step_s", step_s, "a number of seconds")
        if step_s is not None and not 0 <= step_s <= _LONGEST_S:
            raise check.wrong("step_s", "0 or more seconds", step_s)
        self._notice(reports=True)
        if self._session is not None and not self._closed:
            self._session.report(loss, step_s)

    def report_evaluation(self, loss: float) -> None:
        """The held-out loss of the published values, for the status page and metrics."""
        loss = check.real("loss", loss)
        if not math.isfinite(loss):
            raise check.wrong("loss", "a finite number", loss)
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
            raise check.invalid("published() needs a site that has joined")
        if self._replaced:
            raise check.invalid("published() inside published()")
        self._notice()
        with self._team.together():
            values = self._team.agree(self._here.published)
            self._values.settle()
            self._replaced = True
            try:
                with self._values.replaced(values):
                    yield
            finally:
                self._replaced = False
                self._changes()

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
        if self._replaced:
            raise check.invalid("state_dict() inside published(): the model has the run's values there, and its own are "
                                "what belongs to a state. Take it before or after")
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
            raise check.invalid("load_state_dict() must come before the site joins: call it before "
                                "its with block, or hand the state to it as state=")
        if not hasattr(state_dict, "keys"):
            raise check.wrong("state", "what state_dict() gave", state_dict)
        if not state_dict:  # That of a process which does not lead.
            return
        if "state" not in state_dict:
            raise check.wrong("state", "what state_dict() gave, with its key \"state\"", state_dict)
        try:
            state = self._unpack(state_dict["state"])
        except (TypeError, ValueError, AttributeError, RuntimeError):
            raise check.wrong("state", "what state_dict() gave", state_dict) from None
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


def _split_state(state: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """The library's part of a state, and that of Values."""
    head = state[:16].tobytes()
    length = int.from_bytes(head[8:16], "little")
    if head[:8] != _STATE_MAGIC or length > state.size - 16:
        raise errors.DataLoss("this is no state of a site, or it is cut off: use what state_dict() "
                              "gave, whole")
    return state[16:16 + length], state[16 + length:]
