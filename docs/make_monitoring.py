#!/usr/bin/env python3
"""Fills the lists of docs/monitoring.md: events from the comments in common/telemetry/event_names.cc and
the calls that record them, metrics from the calls that export them, with their help texts.

usage: docs/make_monitoring.py [--check]

--check writes nothing: status 1 if the page is not what the code says.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "monitoring.md"
EVENTS = ROOT / "common" / "telemetry" / "event_names.cc"
# Where each side's events are recorded.
RECORDING = {"Coordinator": ("server",), "Worker": ("worker", "common/client")}
# Files that export each side's metrics.
EXPORTING = {
    "coordinator": ("server/views/coordinator_metrics.cc", "server/views/run_history.cc",
                    "server/service/coordinator_server.cc", "common/telemetry/metric_page.cc"),
    "standby": ("server/views/standby_metrics.cc", "common/telemetry/metric_page.cc"),
    "worker": ("worker/member/run_telemetry.cc", "common/telemetry/metric_page.cc")}

ENTRY = re.compile(r'((?: *// .*\n)*) *\{"(\w+)", k(\w+)\},')
RECORD = re.compile(r'\b(?:Record\((?:[^",;]+\? )?|Order\(\s*\w+,)\s*"([a-z_]+)"(?: : "([a-z_]+)")?,')
FIELD = re.compile(r'\{"([a-z_]+)",')
EXPORT = re.compile(r"\bpage\.(Gauge|Counter|Histogram)(?=\()")
ENDING = re.compile(r"^causeway_(training|link)_")  # As the coordinator's causeway_worker_...
STRINGS = re.compile(r'"((?:[^"\\]|\\.)*)"')


def arguments(text, begin):
    """The arguments of the call whose parenthesis opens at `begin`."""
    found, depth, quoted, start = [], 0, False, begin + 1
    i = begin
    while True:
        character = text[i]
        if quoted and character == "\\":
            i += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted:
            if character in ")}" and depth == 1 or character == "," and depth == 1:
                found.append(text[start:i].strip())
                start = i + 1
            depth += (character in "({") - (character in ")}")
            if depth == 0:
                return found
        i += 1


def recorded(*folders):
    """(event, fields, where) of every call of Record with a literal name, or of a choice of two, below the
    folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.cc")):
            text = path.read_text()
            for match in RECORD.finditer(text):
                fields = FIELD.findall(", ".join(arguments(text, text.index("(", match.start()))))
                for name in filter(None, match.groups()):
                    yield name, fields, f"{path.relative_to(ROOT)}:{text[:match.start()].count(chr(10)) + 1}"


def events(side):
    """{name: (level, fields, when)} of "Coordinator" or "Worker". ValueError for an event that only the table
    or only the code has."""
    table = EVENTS.read_text().partition(f"k{side}Events[] = {{\n")[2].partition("\n};")[0]
    found = {name: (level.lower(), [], re.sub(r"\s*\n? *// ", " ", comment).strip())
             for comment, name, level in ENTRY.findall(table)}
    called = set()
    for name, fields, where in recorded(*RECORDING[side]):
        if name not in found:
            raise ValueError(f"{where}: k{side}Events in {EVENTS} lacks {name}, with a comment where the name does not say all")
        called.add(name)
        found[name][1].extend(field for field in fields if field not in found[name][1])
    if found.keys() != called:
        raise ValueError(f"{EVENTS}: nothing records {', '.join(sorted(found.keys() - called))}")
    return found


def literal(text, before, expression):
    """What a string literal, or a variable that was set to one, holds."""
    if not expression.startswith('"'):
        values = re.findall(rf'\bstd::string {expression} =((?:\s*"(?:[^"\\]|\\.)*")+);', text[:before])
        if not values:
            raise ValueError(f"not understood as a text: {expression}")
        expression = values[-1]
    return "".join(STRINGS.findall(expression)).replace('\\"', '"')


def labels(text, before, expression):
    """The label names of a MetricLabels expression."""
    if expression.startswith("with("):
        return labels(text, before, "labels") | {literal(text, before, arguments(expression, 4)[0])}
    if not expression.startswith("{"):
        values = re.findall(rf"\bMetricLabels {expression} = ([^;]*);", text[:before])
        if not values:
            raise ValueError(f"not understood as labels: {expression}")
        expression = values[-1]
    return set(re.findall(r'\{"(\w+)",', expression))


def metrics(side):
    """{name: (type, labels, help)} in the order of the code."""
    found = {}
    for file in EXPORTING[side]:
        text = (ROOT / file).read_text()
        for call in EXPORT.finditer(text):
            given = arguments(text, call.end())
            name = literal(text, call.start(), given[0])
            own = labels(text, call.start(), given[3]) if len(given) > 3 else set()
            kind, known, said = found.get(name, (call[1].lower(), set(), literal(text, call.start(), given[1])))
            found[name] = (kind, known | own, said)
    return found


def linked(text):
    text = re.sub(r"\bdocs/([a-z_]+\.md)(#[\w-]+)?", r"[\1](\1\2)", text)
    return text.replace("(SECURITY.md#", "(../SECURITY.md#")


def event_lines(side):
    for name, (level, fields, when) in events(side).items():
        said = "" if level == "info" else f" {level}"
        said += f" ({', '.join(fields)})" if fields else ""
        yield f"- `{name}`{said}{': ' if when else ''}{linked(when)}"


def metric_lines(found):
    for name, (kind, own, said) in found.items():
        series = name + (f"{{{','.join(sorted(own))}}}" if own else "")
        yield f"- `{series}`{' (histogram)' if kind == 'histogram' else ''}{': ' if said else ''}{linked(said)}"


def lists():
    """{the mark of a list: its lines}"""
    sides = {side: metrics(side) for side in EXPORTING}
    both = {name: sides["worker"][name] for name in sides["worker"] if name in sides["coordinator"]}
    made = {f"metrics: {side}": metric_lines({name: found[name] for name in found if name not in both})
            for side, found in sides.items()}
    made["metrics: worker"] = metric_lines({
        name: (kind, own, "" if said == sides["coordinator"].get(ENDING.sub("causeway_worker_", name), (0, 0, 0))[2] else said)
        for name, (kind, own, said) in sides["worker"].items() if name not in both})
    made["metrics: both"] = metric_lines(both)
    for side in RECORDING:
        made[f"events: {side.lower()}"] = event_lines(side)
    return made


def page(text):
    for mark, lines in lists().items():
        begin, end = f"<!-- make_monitoring.py {mark} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        if not found or end not in rest:
            raise ValueError(f"{PAGE} has no place for {mark}: expected {begin.strip()} and {end}")
        text = before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text


def main(given):
    if given not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    old = PAGE.read_text()
    made = page(old)
    if not given:
        PAGE.write_text(made)
        return 0
    if made == old:
        return 0
    print("docs/monitoring.md is not what the code says: run docs/make_monitoring.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
