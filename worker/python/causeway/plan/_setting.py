"""What a run on paper is made of: sites, links, schedule, and what goes wrong. Units are in names."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import List

UNLIMITED = math.inf
# As measured on two cores and a local disk (docs/results.md): bytes moved by a merge per
# second, seconds that a round's commit adds, bytes of an object beside its values, and seconds from
# a coordinator's start until the workers' transfers go on.
MERGE_BYTES_PER_S = 20e9
COMMIT_SECONDS = 0.025
OBJECT_BYTES = 2500
RETURN_SECONDS = 4.5
# theta, momentum and published in fp32, read and written.
MERGED_STATE_BYTES = 24


class SettingError(ValueError):
    """A setting that makes no sense; the message names it."""


@dataclasses.dataclass
class Site:
    """Sites that are alike. Rates are payload in bits per second."""

    name: str
    count: int = 1
    step_seconds: float = 1.0  # Of an inner step.
    pace: float = 1.0  # Steps of the schedule per inner step.
    up_bit_per_s: float = UNLIMITED
    down_bit_per_s: float = UNLIMITED
    one_way_seconds: float = 0.0
    connections: int = 0  # 0: objects cross at the link's full rate to their last bit.


@dataclasses.dataclass
class Outages:
    """Stretches of seconds in which the coordinator is away. `every`: from one's beginning to that of the
    next on average, drawn evenly from a half to one and a half of it."""

    length: float = 0.0
    every: float = 0.0
    once_at: float = -1.0  # From 0 on: there is one, which begins then.

    def __bool__(self) -> bool:
        return self.length > 0

    def stretches(self):
        """Yields (begin, end), ascending."""
        source = random.Random(1)
        begin = self.once_at if self.once_at >= 0 else self.every * source.random()
        while self:
            yield begin, begin + self.length
            if self.once_at >= 0:
                return
            begin += self.every * (0.5 + source.random())


@dataclasses.dataclass
class Setting:
    sites: List[Site]
    fragment_values: List[float]
    steps_between_syncs: int = 100
    overlap_steps: int = 0
    max_overlap_steps: int = 0  # 0: overlap_steps.
    bits_up: float = 32.0  # Per value.
    bits_down: float = 32.0
    object_bits: float = 0.0  # Beside a fragment's values, each way.
    coordinator_bit_per_s: float = UNLIMITED  # Each way.
    outages: Outages = dataclasses.field(default_factory=Outages)
    return_seconds: float = RETURN_SECONDS  # After each of them.
    steps: int = 500  # Of the schedule.
    warm_up_steps: int = 100  # Not counted.

    @property
    def values(self) -> float:
        return sum(self.fragment_values)

    @property
    def workers(self) -> int:
        return sum(site.count for site in self.sites)

    def check(self) -> None:
        period, fragments = self.steps_between_syncs, len(self.fragment_values)
        required = [
            (self.sites, "sites: at least one is needed"),
            (1 <= fragments <= period, f"fragments must be 1 .. H = {period}; there are {fragments}"),
            (all(0 < values < 1e18 for values in self.fragment_values), "every fragment needs values"),
            (0 <= self.overlap_steps < period,
             f"overlap_steps must be 0 .. H - 1 = {period - 1}; it is {self.overlap_steps}"),
            (self.max_overlap_steps == 0 or self.overlap_steps <= self.max_overlap_steps < period,
             f"max_overlap_steps must be 0, or overlap_steps .. H - 1 = {self.overlap_steps} .. {period - 1}; it is "
             f"{self.max_overlap_steps}"),
            (self.bits_up > 0 and self.bits_down > 0, "bits must be positive"),
            (self.coordinator_bit_per_s > 0, "the coordinator's rate must be positive"),
            (min(self.return_seconds, self.object_bits) >= 0, "a return and an object's bytes must be 0 or more"),
            (0 <= self.warm_up_steps < self.steps,
             f"steps must be above the warm-up's {self.warm_up_steps}; there are {self.steps}")]
        for site in self.sites:
            where = f"site {site.name}: "
            required += [
                (1 <= site.count <= 100_000, where + "count must be 1 .. 100000"),
                (0 < site.step_seconds < 1e6, where + "a step must take more than 0 and less than 1e6 s"),
                (1 <= site.pace <= 1000, where + "pace must be 1 .. 1000"),
                (site.up_bit_per_s > 0 and site.down_bit_per_s > 0, where + "rates must be positive"),
                (0 <= site.connections <= 256, where + "connections must be 0 .. 256"),
                (0 <= site.one_way_seconds < 1e6, where + "a round trip must be 0 or more")]
        for holds, what in required:
            if not holds:
                raise SettingError(what)
        outages = self.outages
        if outages and outages.once_at < 0 and outages.every <= 2 * outages.length:
            raise SettingError(f"outages must be further apart than twice their length: they last {outages.length:g} s, "
                               f"and begin every {outages.every:g} s")
