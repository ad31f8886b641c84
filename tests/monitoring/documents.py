"""What docs/metrics.md and docs/events.md list, for the tests that compare."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def rows(text):
    """The cells of every row of every table."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            yield [cell.strip() for cell in line.strip().strip("|").split("|")]


def section(text, title):
    """From the heading "## title" to the next one of its level."""
    begin = text.index(f"\n## {title}\n")
    end = text.find("\n## ", begin + 1)
    return text[begin:end if end > 0 else len(text)]


def metrics(side):
    """{name: (type, set of labels)} of "coordinator", "standby" or "worker"."""
    title = {"coordinator": "The coordinator's", "standby": "A standby's", "worker": "A worker's"}[side]
    page = (ROOT / "docs" / "metrics.md").read_text()
    text = section(page, title) + section(page, "Both programs'")
    found = {}
    for cells in rows(text):
        if len(cells) == 4 and cells[1] in ("gauge", "counter", "histogram"):
            name = cells[0].strip("`")
            assert name not in found, f"docs/metrics.md lists {name} twice for the {side}"
            found[name] = (cells[1], set(filter(None, cells[2].split(", "))))
    return found


def events(side):
    """{name: (level, set of fields)} of "coordinator" or "worker"."""
    title = {"coordinator": "The coordinator's", "worker": "A worker's"}[side]
    text = section((ROOT / "docs" / "events.md").read_text(), title)
    found = {}
    for cells in rows(text):
        if len(cells) == 4 and cells[1] in ("info", "warn", "error"):
            name = cells[0].strip("`")
            assert name not in found, f"docs/events.md lists {name} twice for the {side}"
            found[name] = (cells[1], set(re.findall(r"`([a-z_]+)`", cells[2])))
    return found
