"""The processes of a site: one, or those of a torch.distributed group, whose first one leads."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import io
import logging
import pickle
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
import torch.distributed as dist

from causeway import errors
from causeway._links import Links
from causeway._team import Team, Values

_HEAD = 8
_MESSAGE = 4096
# As long as a pause of the run or an outage of the coordinator may take.
_TIMEOUT = datetime.timedelta(days=7)
# Signals are looked for so often while one waits for others.
_LOOK = datetime.timedelta(seconds=0.25)
# A line comes after so many seconds, after twice as many, and so on; then at the other interval.
_FIRST_LINE_S, _LINES_S = 5.0, 600.0
log = logging.getLogger("causeway")


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _is_done(work: Any) -> bool:
    """Waits a moment for it. RuntimeError: it has failed."""
    try:
        work.wait(_LOOK)
        return True
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
        return True


def _await_others(ranks: List[int], call: str) -> str:
    """Waits until all processes of a site have come to that `call`, and says whom it waits for. What it gives is the
    same in all of them, and new."""
    store = _store()
    site = f"causeway/site/{hash(tuple(ranks))}"
    # In the store, which a process that is replaced finds again.
    number = store.add(f"{site}/made/{dist.get_rank()}", 1)
    keys = {rank: f"{site}/{number}/{rank}" for rank in ranks}
    own = keys[dist.get_rank()]
    store.set(own, "here")
    begin = time.monotonic()
    say, pause = _FIRST_LINE_S, 0.001
    try:
        while not store.check(list(keys.values())):
            waited = time.monotonic() - begin
            if waited >= say:
                missing = [str(rank) for rank, key in keys.items() if not store.check([key])]
                log.warning("this site has waited %.0f s for rank%s %s of its %d processes: each of them calls %s, "
                            "unless group= names fewer", waited, "s" * (len(missing) > 1), ", ".join(missing),
                            len(ranks), call)
                say = waited + min(waited, _LINES_S)
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return f"{site}/{number}"
    except BaseException:
        store.delete_key(own)
        store.add(f"{site}/made/{dist.get_rank()}", -1)
        raise


class Solo(Team):
    """One process."""

    rank = 0

    def all_parts(self, parts: List[Any]) -> List[List[Any]]:
        """For each entry of `parts`, those of all processes."""
        return [[part] for part in parts]

    def spreads(self, device: torch.device) -> bool:
        """Whether `exchange` takes tensors of that device."""
        return True

    def begin_on(self, device: torch.device) -> None:
        """Comes before the first `exchange` on a device. All processes call it."""

    def exchange(self, outgoing: Dict[int, torch.Tensor], incoming: Dict[int, torch.Tensor],
                 on_device: bool = False) -> None:
        """Hands buffers to some processes, and fills others with what processes hand to this one. All
        those call it alike. On a device this is in its order, and need not have been done."""


class _Carrier:
    """Messages between the processes of a site, for the threads of Links.

    The group is gloo's own object: torch.distributed may forget it while threads use it.
    """

    def __init__(self, group: dist.ProcessGroup, ranks: Sequence[int], rank: int) -> None:
        self.rank = rank
        self.size = len(ranks)
        self._group = group
        self._ranks = [dist.get_group_rank(group, other) for other in ranks]

    def send(self, rank: int, message: Optional[Any]) -> None:
        size = 0 if message is None else len(message)
        self._group.send([torch.tensor([size], dtype=torch.int64, device="cpu")], self._ranks[rank], 0).wait()
        if message is not None:
            self._group.send([torch.frombuffer(message, dtype=torch.uint8)], self._ranks[rank], 0).wait()

    def receive(self, rank: int) -> Optional[np.ndarray]:
        size = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._group.recv([size], self._ranks[rank], 0).wait()
        if int(size[0]) == 0:
            return None
        message = np.empty(int(size[0]), np.uint8)
        self._group.recv([torch.from_numpy(message)], self._ranks[rank], 0).wait()
        return message


class Group(Solo):
    """The processes of `group`, over a gloo group of their own, on the host.

    A process that fails leaves the group, which ends what the others wait for; so does its death.
    """

    def __init__(self, group: Optional[dist.ProcessGroup]) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._key = _await_others(ranks, "join()")
        self._ranks = ranks
        self._turn = 0  # Of collectives.
        self._abandoned: Any = None  # A collective that others have not come to.
        self._group: Optional[dist.ProcessGroup] = self._new_group()
        self._linking: Optional[dist.ProcessGroup] = self._new_group()
        self._trainers = group or dist.group.WORLD
        self.rank = ranks.index(dist.get_rank())
        self.size = len(ranks)
        self.leads = self.rank == 0

    def _new_group(self) -> dist.ProcessGroup:
        return dist.new_group(self._ranks, backend="gloo", timeout=_TIMEOUT, use_local_synchronization=True)

    def links(self, values: Values) -> Links:
        return Links(_Carrier(self._linking, self._ranks, self.rank), values.shares())

    def _safely(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self._group is None:
            raise errors.Aborted("this process takes part in its site no more")
        try:
            return function(*arguments, group=self._group, **named)
        except RuntimeError as error:
            raise errors.Aborted(
                "another process of this site has ended or cannot be reached; its own output says "
                f"why ({str(error).splitlines()[0]})") from None

    def _all(self, function: Callable[..., Any], *arguments: Any) -> None:
        """A collective. Handlers of signals run while it waits; what one raises ends the wait."""
        self._turn += 1
        begin, said = time.monotonic(), False
        work = self._safely(function, *arguments, async_op=True)
        try:
            while not self._safely(lambda group: _is_done(work)):
                if not said and time.monotonic() - begin > _FIRST_LINE_S:
                    said = True
                    with contextlib.suppress(RuntimeError):
                        _store().set(f"{self._key}/at/{self.rank}", str(self._turn))
        except errors.Error:
            raise
        except BaseException as error:
            self._abandoned = work
            if said and self.leads:
                missing = ""
                with contextlib.suppress(RuntimeError):  # Nor may the store's process answer.
                    missing = " and ".join(f"rank {rank}" for rank in range(self.size) if not self._waits(rank))
                log.error("%s ended a wait of %.0f s for %s of this site: is that process stopped, or hung?",
                          type(error).__name__, time.monotonic() - begin, missing or "the ranks")
            raise

    def _waits(self, rank: int) -> bool:
        key = f"{self._key}/at/{rank}"
        return _store().check([key]) and int(_store().get(key)) == self._turn

    def all_parts(self, parts):
        gathered: List[Any] = [None] * self.size
        self._safely(dist.all_gather_object, gathered, parts)
        if any(len(theirs) != len(parts) for theirs in gathered):
            raise errors.InvalidArgument("the processes of a site must have the same trained "
                                         f"parameters; they have {[len(p) for p in gathered]}")
        return [list(of_tensor) for of_tensor in zip(*gathered)]

    def agree(self, function):
        value = error = None
        try:
            value = function()
        except Exception as raised:
            error = raised
        failed = torch.tensor([0 if error is None else 1], device="cpu")
        self._all(dist.all_reduce, failed)
        if error is not None:
            raise error
        if int(failed[0]):
            raise errors.Aborted("another process of this site cannot go on; its own output says why")
        return value

    def spreads(self, device):
        try:
            return self._trainers._get_backend(torch.device(device.type)) is not None
        except RuntimeError:
            return False

    def begin_on(self, device):
        # NCCL's first use of a group must be by all of it, and an exchange may be between some.
        one = torch.ones(1, device=device)
        self._safely(lambda group: dist.all_reduce(one, group=self._trainers))

    def exchange(self, outgoing, incoming, on_device=False):
        def post(group: Optional[dist.ProcessGroup]) -> None:
            group = self._trainers if on_device else group
            operations = [dist.P2POp(function, buffer, self._ranks[rank], group)
                          for function, buffers in ((dist.irecv, incoming), (dist.isend, outgoing))
                          for rank, buffer in buffers.items()]
            for work in dist.batch_isend_irecv(operations) if operations else ():
                work.wait()

        self._safely(post)

    def _share(self, value: Any = None) -> Any:
        """The leader's `value`, in all processes."""
        message = torch.zeros(_MESSAGE, dtype=torch.uint8, device="cpu")
        data = pickle.dumps(value) if self.leads else b""
        if self.leads:
            head = len(data).to_bytes(_HEAD, "little")
            start = head + data[:_MESSAGE - _HEAD]
            message[:len(start)] = torch.frombuffer(bytearray(start), dtype=torch.uint8)
        self._all(dist.broadcast, message, self._ranks[0])
        size = int.from_bytes(bytes(message[:_HEAD].tolist()), "little")
        rest = size - (_MESSAGE - _HEAD)
        received = message[_HEAD:_HEAD + min(size, _MESSAGE - _HEAD)].numpy().tobytes()
        if rest > 0:
            more = torch.frombuffer(bytearray(data[-rest:]), dtype=torch.uint8) if self.leads \
                else torch.empty(rest, dtype=torch.uint8, device="cpu")
            self._all(dist.broadcast, more, self._ranks[0])
            received += more.numpy().tobytes()
        return value if self.leads else pickle.load(io.BytesIO(received))

    def lead(self, function):
        if self.leads:
            try:
                value = function()
            except Exception as error:
                self._share((None, error if isinstance(error, errors.Error) else
                             errors.Aborted(f"{type(error).__name__}: {error}")))
                raise
            self._share((value, None))
            return value
        value, error = self._share()
        if error is not None:
            raise error
        return value

    def count(self, *numbers: int) -> Tuple[int, ...]:
        sums = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._all(dist.all_reduce, sums)
        return tuple(sums.tolist())

    def serve_initial(self, values: Values, join: Callable[..., Any], follow: Callable[[bytes], None]) -> Any:
        if not self.leads:
            while True:
                kind, said = self._share()
                if kind == "failed":
                    raise said
                if kind == "joined":
                    return said
                if kind == "start":
                    follow(said)
                else:
                    tensor, offset, count = said
                    values.initial(tensor, offset, None, count)

        def serve(tensor: int, offset: int, out: np.ndarray) -> None:
            self._share(("values", (tensor, offset, out.size)))
            values.initial(tensor, offset, out, out.size)

        try:
            answer = join(serve, lambda start: self._share(("start", start)))
        except BaseException as error:
            self._share(("failed", error if isinstance(error, errors.Error) else
                         errors.Aborted(f"{type(error).__name__} ended the join of the process "
                                        "that leads this site")))
            raise
        self._share(("joined", answer))
        return answer

    def leave(self) -> None:
        for group in (self._group, self._linking):
            if group is None:
                continue
            if self._abandoned is not None:
                # Whoever frees it would wait for those that do not come. They hear of this process's end.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
            dist.destroy_process_group(group)
        self._group = self._linking = None  # Links that are in use have the latter.

    @contextlib.contextmanager
    def together(self):
        if self._group is not None:
            yield
            return
        if not dist.is_initialized():
            raise errors.InvalidArgument("the processes of this site cannot find each other any more: call this before "
                                         "torch.distributed.destroy_process_group()")
        self._key = _await_others(self._ranks, "published()")
        self._group = self._new_group()
        try:
            yield
        finally:
            self.leave()
