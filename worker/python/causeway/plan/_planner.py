"""Settings for a model and the links between its sites: what is recommended, and why."""

from __future__ import annotations

import dataclasses
import math
from typing import List, Optional, Sequence, Tuple

from causeway.plan._setting import MERGE_BYTES_PER_S, MERGED_STATE_BYTES, OBJECT_BYTES, Outages, Setting, Site
from causeway.plan._star import Result, simulate, slack_for_waits, throughput_bound

# Bits per value on the wire, scales included (docs/codecs.md).
CODEC_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.25, "e3m0": 4.25, "e2m1": 4.25, "int4": 4.25, "lm2": 2.25,
              "sign1": 1.25}
NEED_FEEDBACK = ("lm2", "sign1")  # Up.
PERIODS = (16, 30, 50, 100, 200, 500)
FRAGMENTS = (12, 25, 50, 100, 200)  # And H.
# Up to 10 costs training less than 0.2 % of the loss (arXiv 2501.18512, figure 6).
MOST_OVERLAP = 10
# Share of a line that arrives as payload, 0.85 to 0.9 at 100 ms (docs/results.md).
PLAN_EFFICIENCY = 0.85

# theta, momentum and published: in memory of a fragment that is merged and of one whose snapshot is
# written, else at rest on the disk.
_STATE_BYTES = 12
# One TCP connection with Linux's default buffers at 100 ms (docs/links.md).
_CONNECTION_BITS = 170e6 * 0.1
_WAITED = 0.0005  # Share of the time that slack need not spare anybody.
_MOST_STEPS = 100_000


@dataclasses.dataclass
class Request:
    values: float
    sites: List[Site]  # Rates of the lines.
    link_efficiency: float = PLAN_EFFICIENCY
    target: float = 0.99
    # From the one that costs training the least to the one that costs the link the least.
    codecs: Sequence[Tuple[str, str]] = (("int4", "int4"), ("lm2", "lm2"))
    last_codecs: Sequence[Tuple[str, str]] = (("sign1", "sign1"),)  # Where no H suffices for those.
    coordinator_bit_per_s: float = 10e9
    disk_bytes_per_s: float = 1.7e9  # Of a local disk.
    snapshot_every_rounds: int = 10
    outages: Outages = dataclasses.field(default_factory=Outages)
    return_seconds: float = 4.5

    @property
    def workers(self) -> int:
        return sum(site.count for site in self.sites)

    @property
    def fastest_step(self) -> float:
        return min(site.step_seconds / site.pace for site in self.sites)


@dataclasses.dataclass
class Plan:
    steps_between_syncs: int
    fragments: int
    overlap_steps: int
    codec_up: str
    codec_down: str
    expected: Result
    reaches_target: bool
    binding: str  # What keeps the utilization from being higher, or comes nearest to it.
    needed_bit_per_s: List[float]  # By site, of payload.
    connections: List[int]  # By site.
    coordinator_memory_bytes: float
    coordinator_bit_per_s: float  # The busier direction of its link, mean.
    disk_bytes_per_s: float
    disk_bytes: float
    recovery_seconds: float  # From a coordinator's start until it serves again, at most.
    worker_state_bytes: float  # Published copy and residual.
    # With max_overlap_steps hardly an answer is waited for through the request's outages, or through a
    # death of the coordinator; all the way takes slack_steps beyond overlap_steps.
    max_overlap_steps: int = 0
    slack_steps: int = 0
    outage_seconds: float = 0.0
    utilization_with_slack: float = 0.0
    utilization_without: float = 0.0


def with_links(setting: Setting, bit_per_s: float) -> Setting:
    sites = [dataclasses.replace(site, up_bit_per_s=bit_per_s, down_bit_per_s=bit_per_s)
             for site in setting.sites]
    return dataclasses.replace(setting, sites=sites)


class NoLink(Exception):
    """No link is fast enough for what was asked."""


def needed_rate(setting: Setting, target: float) -> float:
    """The least rate of every site's link, both ways, that reaches the utilization, within 0.1 %."""
    low, high = 1e3, 1e14
    best = simulate(with_links(setting, high)).utilization
    if best < target:
        raise NoLink(f"no link reaches {100 * target:.4g} %: with 100 Tbit/s for every site it is "
                     f"{100 * best:.4g} %; latency, the merge, the coordinator's link or a slow site is in the way")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        if simulate(with_links(setting, middle)).utilization < target:
            low = middle
        else:
            high = middle
    return high


def connections_of(site: Site) -> int:
    if site.connections > 0:
        return site.connections
    rate = max(site.up_bit_per_s, site.down_bit_per_s)
    if math.isinf(rate):
        return 4
    needed = math.ceil(rate * 2 * site.one_way_seconds / _CONNECTION_BITS)
    return min(max(needed, 4), 256)


def outage_steps(setting: Setting) -> int:
    """Steps of a run that sees some twenty outages."""
    step = min(site.step_seconds / site.pace for site in setting.sites)
    outages = setting.outages
    seconds = outages.once_at + outages.length if outages.once_at >= 0 else 20 * outages.every
    return 20 * setting.steps_between_syncs + int(min(seconds / step, _MOST_STEPS))


def over_links(request: Request, schedule: Setting) -> Setting:
    """The schedule over the request's links."""
    efficiency = request.link_efficiency
    sites = [dataclasses.replace(site, connections=connections_of(site),
                                 up_bit_per_s=site.up_bit_per_s * efficiency,
                                 down_bit_per_s=site.down_bit_per_s * efficiency)
             for site in request.sites]
    return dataclasses.replace(
        schedule, sites=sites, object_bits=8 * OBJECT_BYTES,
        coordinator_bit_per_s=request.coordinator_bit_per_s,
        warm_up_steps=schedule.steps_between_syncs, steps=4 * schedule.steps_between_syncs)


def make_plan(request: Request) -> Plan:
    """The smallest H with the most exact codecs that reaches the target, and for these the smallest
    tau, then the fewest fragments. If nothing does, what comes nearest."""
    best: Optional[Tuple[Setting, Tuple[str, str], Result]] = None
    for period, codecs in [(period, codecs) for choice in (request.codecs, request.last_codecs)
                           for period in PERIODS for codecs in choice]:
        if period != PERIODS[-1] and not _rates_suffice(request, period, codecs):
            continue
        for overlap in range(1, MOST_OVERLAP + 1):
            for fragments in [count for count in FRAGMENTS if count < period] + [period]:
                schedule = Setting(
                    [], [request.values / fragments] * fragments, period, overlap,
                    bits_up=CODEC_BITS[codecs[0]], bits_down=CODEC_BITS[codecs[1]])
                result = simulate(over_links(request, schedule))
                if best is None or result.utilization > best[2].utilization:
                    best = schedule, codecs, result
                if result.utilization >= request.target:
                    return _describe(request, *best)
    return _describe(request, *best)


def _disk_bytes(request: Request, bits_up: float, bits_down: float) -> float:
    """Written per value and round: the objects, what a merge changed, and a share of a snapshot."""
    return (request.workers * bits_up + bits_down) / 8 + _STATE_BYTES * (1 + 1 / request.snapshot_every_rounds)


def _rates_suffice(request: Request, period: int, codecs: Tuple[str, str]) -> bool:
    written = request.values * _disk_bytes(request, *(CODEC_BITS[codec] for codec in codecs))
    if written / (period * request.fastest_step) > request.disk_bytes_per_s:
        return False
    for site in request.sites:
        step = site.step_seconds / site.pace
        for codec, rate in zip(codecs, (site.up_bit_per_s, site.down_bit_per_s)):
            bound = throughput_bound(request.values, CODEC_BITS[codec], period, step)
            if bound * request.target > rate * request.link_efficiency:
                return False
    return True


def _binding(request: Request, schedule: Setting, result: Result) -> str:
    busy = [(site.up_busy, f"the uplink of {site.name}") for site in result.sites]
    busy += [(site.down_busy, f"the downlink of {site.name}") for site in result.sites]
    busy += [(result.in_busy, "the coordinator's link in"), (result.out_busy, "the coordinator's link out"),
             (result.merge_busy, "the coordinator's merge")]
    share, what = max(busy)
    text = f"{what}, {100 * share:.0f} % busy"
    if result.utilization < request.target and share < 0.97:
        slowest = max(request.sites, key=lambda site: site.step_seconds / site.pace)
        ratio = slowest.step_seconds / request.fastest_step
        if ratio / slowest.pace > 1.05:
            return (f"the steps of {slowest.name}: the others wait for it "
                    f"(max_pace: {ratio + 0.1:.1f} would end that)")
        text += (f"; an exchange takes up to {result.longest_exchange_seconds:.2f} s, the overlap "
                 f"{schedule.overlap_steps * request.fastest_step:.2f} s")
    return text


def _describe(request: Request, schedule: Setting, codecs: Tuple[str, str], result: Result) -> Plan:
    values, workers = request.values, request.workers
    up, down = schedule.bits_up, schedule.bits_down
    seconds = schedule.steps_between_syncs * result.seconds_per_step
    round_bytes = (workers * up + down) / 8  # Per value.
    snapshots = request.snapshot_every_rounds
    plan = Plan(
        steps_between_syncs=schedule.steps_between_syncs, fragments=len(schedule.fragment_values),
        overlap_steps=schedule.overlap_steps, codec_up=codecs[0], codec_down=codecs[1],
        expected=result,
        reaches_target=result.utilization >= request.target, binding=_binding(request, schedule, result),
        needed_bit_per_s=[throughput_bound(values, max(up, down), schedule.steps_between_syncs,
                                           site.step_seconds / site.pace) for site in request.sites],
        connections=[connections_of(site) for site in request.sites],
        # The last two answers are held, too.
        coordinator_memory_bytes=schedule.fragment_values[0] * (2 * _STATE_BYTES + 2 * down / 8) + result.peak_held_bytes,
        coordinator_bit_per_s=workers * values * max(up, down) / seconds,
        disk_bytes_per_s=values * _disk_bytes(request, up, down) / seconds,
        # At rest, in the last two snapshots, and since the older one.
        disk_bytes=values * (_STATE_BYTES + 2 * (_STATE_BYTES + snapshots * round_bytes)),
        recovery_seconds=values * (
            (_STATE_BYTES + snapshots * round_bytes) / request.disk_bytes_per_s +
            snapshots * (MERGED_STATE_BYTES + round_bytes) / MERGE_BYTES_PER_S),
        worker_state_bytes=values * 8)
    _add_slack(request, schedule, plan)
    return plan


def _add_slack(request: Request, schedule: Setting, plan: Plan) -> None:
    """The least slack that leaves 0.05 % of the time to waiting, if H has so much."""
    setting = over_links(request, schedule)
    setting.outages, setting.return_seconds = request.outages, request.return_seconds
    if not request.outages:
        # The coordinator's own death, again and again, at other steps each time.
        down = plan.recovery_seconds
        period = schedule.steps_between_syncs * request.fastest_step
        setting.outages = Outages(down, 3 * (down + setting.return_seconds + period))
    setting.steps = outage_steps(setting)
    plan.outage_seconds = setting.outages.length + setting.return_seconds
    plan.utilization_without = simulate(setting).utilization
    most = simulate(dataclasses.replace(setting, max_overlap_steps=schedule.steps_between_syncs - 1))
    plan.slack_steps = slack_for_waits(
        most.late_steps, _WAITED * request.workers * (setting.steps - setting.warm_up_steps))
    # A configuration with paces keeps max_pace steps between the last merge and the next send.
    pace = max(site.pace for site in request.sites)
    kept = math.ceil(pace + 0.1) if pace > 1 else 1
    plan.max_overlap_steps = min(schedule.overlap_steps + plan.slack_steps,
                                 max(schedule.overlap_steps, schedule.steps_between_syncs - kept))
    setting.max_overlap_steps = plan.max_overlap_steps
    plan.utilization_with_slack = simulate(setting).utilization
