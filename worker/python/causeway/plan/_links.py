"""Links of a run on paper: queues that share a capacity, and the end of an object on several
connections."""

from __future__ import annotations

import collections
import math
from typing import Deque, Dict, List, Tuple

_CHUNK_BYTES = 1 << 20


def straggler_seconds(size: float, bit_per_s: float, connections: int, round_trip: float) -> float:
    """How much later than at the full rate an object of so many bytes has crossed. Connections take
    chunks of 1 MiB; those that carry the last ones go on at their share of the link, and BBR tries a
    quarter more once in eight round trips."""
    chunks = math.ceil(size / _CHUNK_BYTES)
    if connections <= 1 or chunks <= connections or math.isinf(bit_per_s):
        return 0.0
    stragglers = chunks % connections
    if stragglers == 0:
        return 0.0
    left = size - (chunks - stragglers) * _CHUNK_BYTES
    bits = 8 * min(left, _CHUNK_BYTES)
    share = bit_per_s / connections
    most = connections / stragglers
    growth = 8 * round_trip / math.log(1.25)
    growing = share * growth * (most - 1)
    if bits <= growing:
        seconds = growth * math.log1p(bits / (share * growth))
    else:
        seconds = growth * math.log(most) + (bits - growing) / (share * most)
    return max(0.0, seconds - 8 * left / bit_per_s)


def rested_seconds(size: float, bit_per_s: float, connections: int, round_trip: float) -> float:
    """The same for connections that rested before: BBR sends 2.89 times as fast as they have ever
    delivered (docs/links.md, Against measurements)."""
    if connections < 1 or math.isinf(bit_per_s):
        return 0.0
    segments = size / min(math.ceil(size / _CHUNK_BYTES), connections) / 1448
    paced = segments - 1.5
    if paced <= 0:
        return 0.0
    trips = min(paced / (2.86 * 10), paced / (2.86 * segments - paced))
    return max(0.0, trips * round_trip - 8 * size / bit_per_s)


class Queue:
    __slots__ = ("limit", "full", "count", "transfers", "left", "rate", "since", "version", "bits")

    def __init__(self, limit: float, count: int):
        self.limit = self.full = limit
        self.count = count
        self.transfers: Deque[Tuple[float, int, int]] = collections.deque()  # Bits, fragment, round.
        self.left = self.rate = self.since = 0.0
        self.version = 0
        self.bits = 0.0  # Carried for each of `count` since counting began.


class Links:
    """One direction: a queue per worker, and the coordinator's link that they share."""

    def __init__(self, queues: List[Queue], capacity: float, schedule):
        self.queues = queues
        self.capacity = capacity
        self.ample = sum(queue.limit * queue.count for queue in queues) <= capacity
        self.active: Dict[int, None] = {}
        self.changed = False
        self.counting = False
        self._schedule = schedule  # Called with (time, worker, version) when a transfer ends.

    def settle(self, now: float, queue: Queue) -> None:
        moved = queue.left if math.isinf(queue.rate) else min(queue.left, queue.rate * (now - queue.since))
        queue.left -= moved
        queue.since = now
        if self.counting:
            queue.bits += moved

    def set_rate(self, now: float, index: int, rate: float) -> None:
        queue = self.queues[index]
        self.settle(now, queue)
        queue.rate = rate
        queue.version += 1
        if rate > 0:
            self._schedule(now + (0.0 if math.isinf(rate) else queue.left / rate), index, queue.version)

    def _begin(self, now: float, index: int) -> None:
        queue = self.queues[index]
        if not queue.transfers:
            return
        queue.left, queue.rate, queue.since = queue.transfers[0][0], 0.0, now
        self.active[index] = None
        if self.ample:
            self.set_rate(now, index, queue.limit)
        else:
            self.changed = True

    def add(self, now: float, index: int, transfer: Tuple[float, int, int]) -> None:
        transfers = self.queues[index].transfers
        transfers.append(transfer)
        if len(transfers) == 1:
            self._begin(now, index)

    def finish(self, now: float, index: int, version: int):
        """The transfer that is over, or None if something has changed since it was scheduled."""
        queue = self.queues[index]
        if queue.version != version or not queue.transfers:
            return None
        self.settle(now, queue)
        queue.version += 1
        del self.active[index]
        self.changed = self.changed or not self.ample
        done = queue.transfers.popleft()
        self._begin(now, index)
        return done

    def set_limit(self, now: float, index: int, limit: float) -> None:
        self.queues[index].limit = limit
        if not self.ample:
            self.changed = True
        elif index in self.active:
            self.set_rate(now, index, limit)

    def share(self, now: float) -> None:
        """Max-min fair rates for what has begun. To be called before time goes on."""
        if not self.changed:
            return
        self.changed = False
        capacity = self.capacity
        waiting = sum(self.queues[index].count for index in self.active)
        for index in sorted(self.active, key=lambda i: self.queues[i].limit):
            queue = self.queues[index]
            rate = min(queue.limit, capacity / waiting)
            capacity = max(0.0, capacity - rate * queue.count)
            waiting -= queue.count
            if rate != queue.rate:
                self.set_rate(now, index, rate)

    def count_from(self, now: float) -> None:
        for index in self.active:
            self.settle(now, self.queues[index])
        self.counting = True

    def carried(self, now: float, index: int) -> float:
        if index in self.active:
            self.settle(now, self.queues[index])
        return self.queues[index].bits
