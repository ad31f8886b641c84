"""A run on paper: sites in a star around a coordinator, every step, send, merge and answer an event.

A worker computes its steps and sends each fragment when it is due. A queue each way, first in, first
out, carries its deltas and answers; all queues that are not empty share the coordinator's link
fairly. When all have sent a fragment it is merged, made durable, and answered to all. A worker waits
where an answer is missing that is due at the latest.

Left out: TCP's slow start, losses, the state fetched at the start, quorum and grace, deaths of
workers. Time is simulated and randomness follows from the seed: equal settings give equal results.
Checked against measurements in docs/links.md.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
import math
from typing import Deque, Dict, List, Tuple

from causeway.plan._links import Links, Queue, rested_seconds, straggler_seconds
from causeway.plan._setting import COMMIT_SECONDS, MERGE_BYTES_PER_S, MERGED_STATE_BYTES, Setting, SettingError, Site

_MOST_IDLE_EVENTS = 2_000_000


@dataclasses.dataclass
class SiteResult:
    """Of each worker of one site, after the warm-up."""

    name: str
    utilization: float  # compute / (compute + waiting for answers).
    up_busy: float  # Share of what the link could carry.
    down_busy: float


@dataclasses.dataclass
class Result:
    sites: List[SiteResult]
    utilization: float  # All workers together.
    seconds_per_step: float  # Of the schedule.
    exchange_seconds: float  # From sending a delta to having the answer, mean.
    longest_exchange_seconds: float
    in_busy: float  # The coordinator's link and merge.
    out_busy: float
    merge_busy: float
    up_bytes_per_step: float  # Of a worker.
    down_bytes_per_step: float
    peak_held_bytes: float  # Deltas that wait for their merge.
    rounds: int
    # Slack in steps that would have spared a worker its wait, for each stretch of late answers, ascending.
    late_steps: List[int]


def throughput_bound(values: float, bits: float, period: int, step_seconds: float) -> float:
    """The least rate of a link, in bits per second, with which training need not wait, however long
    the overlap."""
    return values * bits / (period * step_seconds)


class _Worker:
    """All workers of a site, which do everything at the same time."""

    def __init__(self, site: Site, count: int, fragments: int):
        self.site, self.count = site, count
        self.state, self.step, self.fraction = "computing", 0, 0.0
        self.due: Deque[Tuple[int, int, int]] = collections.deque()  # Fragment, round, send step.
        self.since = 0.0
        self.answered = [0] * fragments
        self.sent_at = [-1.0] * fragments
        self.late: Dict[int, float] = {}  # Merge step's time by fragment whose answer is missing.
        self.longest_late = self.computed = self.waited = 0.0


class _Run:
    def __init__(self, setting: Setting):
        self.s = setting
        period, fragments = setting.steps_between_syncs, len(setting.fragment_values)
        self.latest = max(setting.overlap_steps, setting.max_overlap_steps)
        self.offsets = [(k + 1) * period // fragments for k in range(fragments)]
        self.due_at: Dict[int, List[int]] = {}
        for fragment, offset in enumerate(self.offsets):
            self.due_at.setdefault(offset % period, []).append(fragment)
        self.workers = [_Worker(site, site.count, fragments) for site in setting.sites]
        self.all = sum(worker.count for worker in self.workers)
        self.heap: List[tuple] = []
        self.order, self.now = 0, 0.0
        self.up, self.down = (
            Links([Queue(getattr(worker.site, f"{way}_bit_per_s"), worker.count)
                    for worker in self.workers], setting.coordinator_bit_per_s, schedule)
            for way, schedule in (("up", self._schedule(self._delta_sent)),
                                  ("down", self._schedule(self._answer_sent))))
        self.arrived, self.round, self.held = [0] * fragments, [1] * fragments, [0.0] * fragments
        self.held_bytes = self.merge_free = self.merge_busy = 0.0
        self.away, self.back_at = False, 0.0
        self.outages = setting.outages.stretches()
        self.counting = setting.warm_up_steps == 0
        self.counting_since = self.exchange_seconds = self.longest = self.peak = 0.0
        self.exchanges, self.rounds, self.late_steps = 0, 0, []

    def _schedule(self, done):
        return lambda time, index, version: self.at(time, done, index, version)

    def at(self, time: float, call, *arguments) -> None:
        heapq.heappush(self.heap, (time, self.order, call, arguments))
        self.order += 1

    def run(self) -> Result:
        self.up.counting = self.down.counting = self.counting
        self._next_outage()
        for index in range(len(self.workers)):
            self._start_step(index)
        furthest = idle = 0
        while any(worker.state != "finished" for worker in self.workers):
            if not self.heap or self.heap[0][0] > self.now:
                self.up.share(self.now)
                self.down.share(self.now)
            idle += 1
            if self.workers[0].step > furthest:
                furthest, idle = self.workers[0].step, 0
            if not self.heap or idle > _MOST_IDLE_EVENTS:
                raise SettingError(f"the run gets nowhere: after {self.now:g} simulated seconds it has not "
                                   "done its steps; is the coordinator hardly ever there?")
            self.now, _, call, arguments = heapq.heappop(self.heap)
            call(*arguments)
        return self._result()

    # Workers.

    def _counted(self, since: float) -> float:
        return self.now - max(since, self.counting_since) if self.counting else 0.0

    def _start_step(self, index: int) -> None:
        worker = self.workers[index]
        worker.state, worker.since = "computing", self.now
        self.at(self.now + worker.site.step_seconds, self._finish_step, index)

    def _finish_step(self, index: int) -> None:
        worker, s = self.workers[index], self.s
        worker.computed += self._counted(worker.since)
        worker.fraction += worker.site.pace
        whole = int(worker.fraction)
        worker.fraction -= whole
        for step in range(worker.step + 1, min(s.steps, worker.step + whole) + 1):
            worker.step = step
            for fragment in self.due_at.get(step % s.steps_between_syncs, ()):
                if step >= self.offsets[fragment]:
                    self._send(index, fragment)
            sent = step - s.overlap_steps
            for fragment in self.due_at.get(sent % s.steps_between_syncs, ()) if sent > 0 else ():
                if sent >= self.offsets[fragment]:
                    number = (sent - self.offsets[fragment]) // s.steps_between_syncs + 1
                    worker.due.append((fragment, number, sent))
                    if worker.answered[fragment] < number:
                        worker.late[fragment] = self.now
        if not self.counting and worker.step >= s.warm_up_steps:
            self.counting, self.counting_since = True, self.now
            self.up.count_from(self.now)
            self.down.count_from(self.now)
        if worker.step >= s.steps:
            worker.state = "finished"
        else:
            self._go_on(index)

    def _go_on(self, index: int) -> None:
        """Merges what is due and has come; computes on, unless something missing is due at the latest."""
        worker = self.workers[index]
        worker.due = collections.deque(
            event for event in worker.due if worker.answered[event[0]] < event[1])
        if worker.due and worker.due[0][2] + self.latest <= worker.step:
            if worker.state != "waiting":
                worker.state, worker.since = "waiting", self.now
            return
        if worker.state == "waiting":
            worker.waited += self._counted(worker.since)
        self._start_step(index)

    def _send(self, index: int, fragment: int) -> None:
        self.workers[index].sent_at[fragment] = self.now
        bits = self.s.fragment_values[fragment] * self.s.bits_up + self.s.object_bits
        self.up.add(self.now, index, (bits, fragment, self.round[fragment]))

    def _late_steps(self, worker: _Worker, seconds: float) -> None:
        if self.counting:
            steps = math.ceil(seconds / (worker.site.step_seconds / worker.site.pace) - 1e-9)
            if steps > 0:
                self.late_steps += [steps] * worker.count

    def _answer_arrived(self, index: int, fragment: int, number: int) -> None:
        worker = self.workers[index]
        worker.answered[fragment] = number
        since = worker.late.pop(fragment, None)
        if since is not None:
            worker.longest_late = max(worker.longest_late, self.now - since)
            if not worker.late:
                self._late_steps(worker, worker.longest_late)
                worker.longest_late = 0.0
        if worker.sent_at[fragment] >= 0:
            seconds = self.now - worker.sent_at[fragment]
            worker.sent_at[fragment] = -1.0
            if self.counting:
                self.exchange_seconds += seconds * worker.count
                self.exchanges += worker.count
                self.longest = max(self.longest, seconds)
        if worker.state == "waiting":
            self._go_on(index)

    # Links.

    def _delta_sent(self, index: int, version: int) -> None:
        done = self.up.finish(self.now, index, version)
        if done:
            site = self.workers[index].site
            rate = min(site.up_bit_per_s, self.s.coordinator_bit_per_s)
            trip = 2 * site.one_way_seconds
            late = max(straggler_seconds(done[0] / 8, rate, site.connections, trip),
                       rested_seconds(done[0] / 8, rate, site.connections, trip))
            self.at(self.now + site.one_way_seconds + late, self._delta_arrived, index, done[1])

    def _answer_sent(self, index: int, version: int) -> None:
        done = self.down.finish(self.now, index, version)
        if done:
            site = self.workers[index].site
            rate = min(site.down_bit_per_s, self.s.coordinator_bit_per_s)
            # Connections down have found the link's rate when they carried the state.
            late = straggler_seconds(done[0] / 8, rate, site.connections, 2 * site.one_way_seconds)
            self.at(self.now + site.one_way_seconds + late, self._answer_arrived, index, *done[1:])

    # The coordinator. What reaches it while it is away is done when it is back.

    def _delta_arrived(self, index: int, fragment: int) -> None:
        if self.away:
            self.at(max(self.now, self.back_at), self._delta_arrived, index, fragment)
            return
        s, values = self.s, self.s.fragment_values[fragment]
        count = self.workers[index].count
        self.held[fragment] += values * s.bits_up / 8 * count
        self.held_bytes += values * s.bits_up / 8 * count
        if self.counting:
            self.peak = max(self.peak, self.held_bytes)
        self.arrived[fragment] += count
        if self.arrived[fragment] < self.all:
            return
        seconds = values * (MERGED_STATE_BYTES + (s.bits_up * self.all + s.bits_down) / 8) / MERGE_BYTES_PER_S
        self.merge_free = max(self.merge_free, self.now) + seconds
        if self.counting:
            self.merge_busy += seconds
        self.at(self.merge_free + COMMIT_SECONDS, self._publish, fragment)

    def _publish(self, fragment: int) -> None:
        if self.away:
            self.at(max(self.now, self.back_at), self._publish, fragment)
            return
        bits = self.s.fragment_values[fragment] * self.s.bits_down + self.s.object_bits
        for index in range(len(self.workers)):
            self.down.add(self.now, index, (bits, fragment, self.round[fragment]))
        self.rounds += self.counting
        self.held_bytes -= self.held[fragment]
        self.held[fragment], self.arrived[fragment] = 0.0, 0
        self.round[fragment] += 1

    # Outages.

    def _set_away(self, away: bool) -> None:
        self.away = away
        for links in (self.up, self.down):
            for index, queue in enumerate(links.queues):
                links.set_limit(self.now, index, 0.0 if away else queue.full)

    def _next_outage(self) -> None:
        stretch = next(self.outages, None)
        if stretch:
            self.at(max(self.now, stretch[0]), self._outage_begins, stretch[1] + self.s.return_seconds)

    def _outage_begins(self, back_at: float) -> None:
        self.back_at = back_at
        self.at(max(self.now, back_at), self._outage_ends)
        self._set_away(True)

    def _outage_ends(self) -> None:
        self._set_away(False)
        self._next_outage()

    def _result(self) -> Result:
        s, seconds = self.s, self.now - self.counting_since
        carried = [(self.up.carried(self.now, i), self.down.carried(self.now, i))
                   for i in range(len(self.workers))]
        sites = [SiteResult(worker.site.name, worker.computed / (worker.computed + worker.waited),
                            bits[0] / worker.site.up_bit_per_s / seconds,
                            bits[1] / worker.site.down_bit_per_s / seconds)
                 for worker, bits in zip(self.workers, carried)]
        for worker in filter(lambda worker: worker.late, self.workers):
            self._late_steps(worker, max(worker.longest_late, self.now - min(worker.late.values())))
        computed = sum(worker.computed * worker.count for worker in self.workers)
        waited = sum(worker.waited * worker.count for worker in self.workers)
        taken = [sum(bits[way] * worker.count for worker, bits in zip(self.workers, carried)) /
                 (s.coordinator_bit_per_s * seconds) for way in (0, 1)]
        return Result(
            sites=sites, utilization=computed / (computed + waited),
            seconds_per_step=seconds / (s.steps - s.warm_up_steps),
            exchange_seconds=self.exchange_seconds / self.exchanges if self.exchanges else 0.0,
            longest_exchange_seconds=self.longest, in_busy=taken[0], out_busy=taken[1],
            merge_busy=self.merge_busy / seconds,
            up_bytes_per_step=s.values * s.bits_up / 8 / s.steps_between_syncs,
            down_bytes_per_step=s.values * s.bits_down / 8 / s.steps_between_syncs,
            peak_held_bytes=self.peak, rounds=self.rounds, late_steps=sorted(self.late_steps))


def simulate(setting: Setting) -> Result:
    """Raises SettingError for a setting that makes no sense."""
    setting.check()
    return _Run(setting).run()


def slack_for_waits(late_steps: List[int], steps: float) -> int:
    """The least slack that leaves at most so many steps, of all workers together, to waiting."""
    slack, waited = (late_steps[-1] if late_steps else 0), 0
    while slack > 0:
        # With one step less every longer stretch is waited for one step more.
        waited += len(late_steps) - bisect.bisect_left(late_steps, slack)
        if waited > steps:
            break
        slack -= 1
    return slack
