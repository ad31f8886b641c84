"""The processes of a site: one, or those of a torch.distributed group, whose first one leads."""

from __future__ import annotations

import datetime
import io
import logging
import pickle
import time
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from causeway import errors
from causeway._site import Team, Values

_HEAD = 8
_MESSAGE = 4096
# As long as a pause of the run or an outage of the coordinator may take.
_TIMEOUT = datetime.timedelta(days=7)
# A line comes after so many seconds, after twice as many, and so on; then at the other interval.
_FIRST_LINE_S, _LINES_S = 5.0, 600.0
log = logging.getLogger("causeway")


def _await_others(ranks: List[int]) -> None:
    """Waits until all processes of a site make it, and says whom it waits for."""
    store = dist.distributed_c10d._get_default_store()
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
                log.warning("this site has waited %.0f s for rank%s %s of its %d processes: each of them calls join(), "
                            "unless group= names fewer", waited, "s" * (len(missing) > 1), ", ".join(missing),
                            len(ranks))
                say = waited + min(waited, _LINES_S)
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
    except BaseException:
        store.delete_key(own)
        store.add(f"{site}/made/{dist.get_rank()}", -1)
        raise


class Solo(Team):
    """One process."""

    rank = 0
    size = 1

    def all_parts(self, parts: List[Any]) -> List[List[Any]]:
        """For each entry of `parts`, those of all processes."""
        return [[part] for part in parts]

    def agree(self, function: Callable[[], Any]) -> None:
        """Calls `function` in all processes; raises in all of them if it raises in one."""
        function()

    def spreads(self, device: torch.device) -> bool:
        """Whether `spread` takes tensors of that device."""
        return True

    def spread(self, buffer: torch.Tensor) -> None:
        """Makes it what it is in the process that leads, without waiting for a device."""

    def send(self, buffer: torch.Tensor, rank: int) -> None:
        raise NotImplementedError

    def receive(self, buffer: torch.Tensor, rank: int) -> None:
        raise NotImplementedError


class Group(Solo):
    """The processes of `group`, over a gloo group of their own, on the host.

    A process that fails leaves the group, which ends what the others wait for; so does its death.
    """

    def __init__(self, group: Optional[dist.ProcessGroup]) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        _await_others(ranks)
        self._group: Optional[dist.ProcessGroup] = dist.new_group(
            ranks, backend="gloo", timeout=_TIMEOUT, use_local_synchronization=True)
        self._trainers = group or dist.group.WORLD
        self._ranks = ranks
        self.rank = ranks.index(dist.get_rank())
        self.size = len(ranks)
        self.leads = self.rank == 0

    def _safely(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, group=self._group, **named)
        except RuntimeError as error:
            raise errors.Aborted(
                "another process of this site has ended or cannot be reached; its own output says "
                f"why ({str(error).splitlines()[0]})", "ABORTED") from None

    def all_parts(self, parts):
        gathered: List[Any] = [None] * self.size
        self._safely(dist.all_gather_object, gathered, parts)
        if any(len(theirs) != len(parts) for theirs in gathered):
            raise errors.InvalidArgument("the processes of a site must have the same trained "
                                         f"parameters; they have {[len(p) for p in gathered]}",
                                         "INVALID_ARGUMENT")
        return [list(of_tensor) for of_tensor in zip(*gathered)]

    def agree(self, function):
        error = None
        try:
            function()
        except errors.Error as raised:
            error = raised
        failed = torch.tensor([0 if error is None else 1], device="cpu")
        self._safely(dist.all_reduce, failed)
        if error is not None:
            raise error
        if int(failed[0]):
            raise errors.Aborted("another process of this site cannot go on; its own output says "
                                 "why", "ABORTED")

    def spreads(self, device):
        try:
            return self._trainers._get_backend(torch.device(device.type)) is not None
        except RuntimeError:
            return False

    def spread(self, buffer):
        dist.broadcast(buffer, self._ranks[0], group=self._trainers)

    def send(self, buffer, rank):
        self._safely(dist.send, buffer, self._ranks[rank])

    def receive(self, buffer, rank):
        self._safely(dist.recv, buffer, self._ranks[rank])

    def _share(self, value: Any = None) -> Any:
        """The leader's `value`, in all processes."""
        message = torch.zeros(_MESSAGE, dtype=torch.uint8, device="cpu")
        data = pickle.dumps(value) if self.leads else b""
        if self.leads:
            head = len(data).to_bytes(_HEAD, "little")
            start = head + data[:_MESSAGE - _HEAD]
            message[:len(start)] = torch.frombuffer(bytearray(start), dtype=torch.uint8)
        self._safely(dist.broadcast, message, self._ranks[0])
        size = int.from_bytes(bytes(message[:_HEAD].tolist()), "little")
        rest = size - (_MESSAGE - _HEAD)
        received = message[_HEAD:_HEAD + min(size, _MESSAGE - _HEAD)].numpy().tobytes()
        if rest > 0:
            more = torch.frombuffer(bytearray(data[-rest:]), dtype=torch.uint8) if self.leads \
                else torch.empty(rest, dtype=torch.uint8, device="cpu")
            self._safely(dist.broadcast, more, self._ranks[0])
            received += more.numpy().tobytes()
        return value if self.leads else pickle.load(io.BytesIO(received))

    def lead(self, function):
        if self.leads:
            try:
                value = function()
            except Exception as error:
                self._share((None, error if isinstance(error, errors.Error) else
                             errors.Aborted(f"{type(error).__name__}: {error}", "ABORTED")))
                raise
            self._share((value, None))
            return value
        value, error = self._share()
        if error is not None:
            raise error
        return value

    def count(self, *numbers: int) -> Tuple[int, ...]:
        sums = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        self._safely(dist.all_reduce, sums)
        return tuple(sums.tolist())

    def serve_initial(self, values: Values, join: Callable[[Callable[..., None]], Any]) -> Any:
        if not self.leads:
            while True:
                request, answer, error = self._share()
                if error is not None:
                    raise error
                if request is None:
                    return answer
                tensor, offset, count = request
                values.initial(tensor, offset, None, count)

        def serve(tensor: int, offset: int, out: np.ndarray) -> None:
            self._share(((tensor, offset, out.size), None, None))
            values.initial(tensor, offset, out, out.size)

        try:
            answer = join(serve)
        except BaseException as error:
            self._share((None, None, error if isinstance(error, errors.Error) else
                         errors.Aborted(f"{type(error).__name__} ended the join of the process "
                                        "that leads this site", "ABORTED")))
            raise
        self._share((None, answer, None))
        return answer

    def leave(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            dist.destroy_process_group(group)
