"""Cuts a worker's link in the middle of a push and of a pull, and counts what is sent again.

A cut either lets nothing through for some seconds, or breaks every connection by resetting both
ends. What is published must have the bits of the undisturbed run.
"""

import dataclasses
import json

from exchange import Run, config_text
from network import LinkSettings, Network
from processes import Failed, hashes, working_folder

_OBJECT_BYTES = 16 << 20
_FRAGMENTS = 2
_ROUNDS = 2
_SHARE = 0.3  # Share of the first object that crosses before the cut.
_LINK = LinkSettings(rate_mbit=100, rtt_ms=50)


@dataclasses.dataclass(frozen=True)
class _Case:
    name: str
    way: str = ""     # up or down; empty: left in peace.
    action: str = ""  # Command to the link program.


_CASES = (
    _Case("undisturbed"),
    _Case("push, cut for 5 s", "up", "cut 5"),
    _Case("push, connections reset", "up", "reset"),
    _Case("pull, cut for 5 s", "down", "cut 5"),
    _Case("pull, connections reset", "down", "reset"),
)


def _run(options, case):
    """What came of it: hashes, and bytes by the worker's count and by the link's."""
    with Network(options.bin / "causeway-wan-link", [_LINK] * 2,
                 congestion=options.congestion) as network, working_folder() as folder, \
            Run(network, options.bin, folder, config_text(_OBJECT_BYTES, _FRAGMENTS, 2)) as run:
        flags = [f"--rounds={_ROUNDS}", "--pushes=1", "--pulls=1"]
        if options.connections:
            flags.append(f"--connections={options.connections}")
        link = network.links[0]
        if case.way:
            link.tell(f"when {case.way} {int(_SHARE * _OBJECT_BYTES)} {case.action}")
        drivers = [run.start_exchange(i, *flags) for i in range(2)]
        reports = [json.loads(driver.wait(300)) for driver in drivers]
        counted = link.counters()
        published = hashes(run.run_dir)
    if case.way and counted["triggers_fired"] != 1:
        raise Failed(f"{case.name}: the link was never cut")
    if len(published) != _FRAGMENTS * _ROUNDS:
        raise Failed(f"{case.name}: {len(published)} rounds were published")
    up, down = reports[0]["samples"][-1][1:3]
    objects = _FRAGMENTS * _ROUNDS * reports[0]["object_bytes"]
    return {
        "case": case.name, "hashes": published, "seconds": _seconds(reports[0]),
        "resent_up_bytes": up - objects, "resent_down_bytes": down - objects,
        "link_up_bytes": counted["up"]["delivered"]["bytes"],
        "link_down_bytes": counted["down"]["delivered"]["bytes"],
        "connections_broken": counted["connections_broken"],
        "connections": reports[0]["connections"],
        "resent_chunks": reports[0]["resent_chunks"], "resumes": reports[0]["resumes"],
    }


def _seconds(report):
    times = [(move["begin_unix_s"], move["end_unix_s"]) for move in report["transfers"]]
    return max(end for _, end in times) - min(begin for begin, _ in times)


def run_cuts(options, progress):
    """All cases, the undisturbed one first; raises Failed where bits differ."""
    results = []
    for case in _CASES:
        progress(f"{case.name} ...")
        results.append(_run(options, case))
        if results[-1]["hashes"] != results[0]["hashes"]:
            raise Failed(f"{case.name}: the published fragments differ from the undisturbed run's")
    calm = results[0]
    report = []
    for result in results:
        way = "down" if result["case"].startswith("pull") else "up"
        row = {key: value for key, value in result.items() if key != "hashes"}
        row["resent_bytes"] = result[f"resent_{way}_bytes"]
        row["resent_bytes_per_stripe"] = row["resent_bytes"] / result["connections"]
        # By the link's own count, what TCP repeated included.
        row["more_on_link_bytes"] = result[f"link_{way}_bytes"] - calm[f"link_{way}_bytes"]
        row["seconds_lost"] = result["seconds"] - calm["seconds"]
        report.append(row)
    return report


def table(report):
    lines = ["| 30 % into | connections | sent again | per connection | more on the link | "
             "longer by |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for row in report[1:]:
        lines.append(f"| a {row['case']} | {row['connections']} | "
                     f"{row['resent_bytes'] / 2**20:.1f} MiB | "
                     f"{row['resent_bytes_per_stripe'] / 2**20:.2f} MiB | "
                     f"{row['more_on_link_bytes'] / 2**20:.1f} MiB | {row['seconds_lost']:.1f} s |")
    return "\n".join(lines)
