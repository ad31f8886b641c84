"""Of trainings: what became of a fault, the tables, the figure and docs/reports/peers.md."""

import json
import math
import re

from ways import ROWS

OURS = "causeway-int4"
SHORT = {"site": "site killed", "server": "server killed", "cut": "link cut", "join": "joiner",
         "nan": "NaN weights"}
_WAIT_S = 1.5  # A pause longer than the usual ones by this is a wait for something.
_LOSS = 0.001  # A loss lower by more is lower.
_SETTLED_S = 3  # By then the fault has done what it does at once.


# --- What became of a fault ---------------------------------------------------------------------------


def pauses(log):
    """(end, length) of the time between two steps."""
    times = [line["t"] for line in log if "step" in line]
    return [(after, after - before) for before, after in zip(times, times[1:])]


def judge(result, logs, undisturbed):
    """What a fault made of the training of site 0, which none hits. `undisturbed`: the same row's result without one,
    or None. Returns figures, and them as a text of a few words."""
    at = result["fault_at"]
    site, other = logs[0], logs[2 if result["fault"] == "join" else 1]
    if at is None:
        return {"text": "ended before the fault"}
    usual = max((length for end, length in pauses(site) if end <= at), default=0.0)
    steps = [line["step"] for line in site if "step" in line]
    last = max((line["t"] for line in site if "step" in line), default=at)
    became = {
        "waited_s": round(max([length for end, length in pauses(site) if end > at] + [0.0]), 1),
        "usual_s": round(max(usual, undisturbed["longest_pause_s"] if undisturbed else 0.0), 1),
        "last_step_s": round(last - at, 1),
        "nan": any(math.isnan(line.get("loss", 0.0)) for line in site[-1:]),
        "repeated_steps": len(steps) - len(set(steps)),
        "trained_after": any(line["t"] > at + _SETTLED_S for line in other if "step" in line),
        "begun_at": next((line["step"] for line in other if "step" in line and line["t"] > at + _SETTLED_S), None)}
    if undisturbed and result["finished"]:
        became["longer_s"] = round(result["wall_s"] - undisturbed["wall_s"], 1)
        became["more_bytes"] = round(result["steps"] * sum(
            result["bytes_per_step"][way] - undisturbed["bytes_per_step"][way] for way in ("up", "down")))
        if result["loss"] is not None and undisturbed["loss"] is not None:
            became["worse"] = round(result["loss"] - undisturbed["loss"], 4)
    return became | {"text": words(result, became)}


def words(result, became):
    """What became of a fault, for the table."""
    finished, steps = result["finished"], result["steps"]
    if became.get("nan") or finished and result["loss"] is None:
        return "NaN everywhere"
    if "0" not in finished and result["status"].get("site-0"):
        return "ends"
    if not finished and became["last_step_s"] < result["limit_s"] / 4:
        return "stands still"
    parts = ["starts again" if became["repeated_steps"] > steps / 20 else
             f"waits {became['waited_s']:.0f} s" if became["waited_s"] > became["usual_s"] + _WAIT_S else "goes on"]
    unfinished = {site: f"{result['done'][int(site)]}/{steps}" for site in ("0", "1")
                  if site not in finished and "server" not in finished}
    ends = "1" in unfinished and result["status"].get("site-1")
    if "0" in unfinished:
        parts += ["a site ends"] * bool(ends) + [f"unfinished {unfinished['0']}"]
    elif not became["trained_after"]:
        parts.append("without it")
    elif "1" in unfinished:
        parts.append("a site ends" if ends else f"one site unfinished ({unfinished['1']})")
    if "worse" in became:
        parts.append(f"{became['worse']:+.3f}")
    return ", ".join(parts)


# --- Tables --------------------------------------------------------------------------------------------


def one_line(result):
    """Of a cell, for who waits for it."""
    text = f"{result['row']}: "
    if "wall_s" not in result:
        return text + "did not train: " + result.get("why", "")
    moved = result["bytes_per_step"]
    text += (f"{min(result['done'][:2])}/{result['steps']} steps, {result['wall_s']:.0f} s, computing "
             f"{100 * result['share']:.0f} %, {moved['up'] / 1e3:.1f}/{moved['down'] / 1e3:.1f} kB a step, "
             f"{result['machine_memory']['site'] >> 20} MB, server {result['machine_memory']['server'] >> 20} MB")
    if result["whole"]:
        text += (f", loss {loss(result)}, the sites' models are {'equal' if result['equal'] else 'DIFFERENT'}")
    if "became" in result:
        text += "; " + result["became"]["text"]
    return text


def loss(result):
    return "NaN" if result["loss"] is None else f"{result['loss']:.3f}"


def columns(report):
    """(model, link) of what was measured without a fault."""
    found = dict.fromkeys((cell["model"], cell["link"]) for cell in report["cells"].values() if not cell["fault"])
    return sorted(found, key=lambda column: (len(column[0]), -float(column[1].partition("mbit")[0])))


def cell_of(report, name, model, link, fault=None):
    return report["cells"].get("/".join((name, model, link, fault or "")))


def heading(model, link):
    return f"{model.upper()}: {re.sub('mbit|ms', '', link).replace(',', '/')}"


def _share(cell):
    if cell is None:
        return "not run"
    if "share" not in cell:
        return "failed"
    return f"{100 * cell['share']:.0f}{_mark(cell)}"


def _around(cell):
    """Seconds of what is no training: before it and after it."""
    return cell["took_s"] - cell["wall_s"]


def _mark(cell):
    return "" if cell["whole"] else "*"


def _measured(report, name, model=None):
    """The cells of a row that trained, without faults: those over 100 Mbit/s first, or of who never ended, the longest."""
    cells = [cell_of(report, name, *column) for column in columns(report) if model in (None, column[0])]
    cells = [cell for cell in cells if cell and "share" in cell]
    return sorted(cells, key=lambda cell: (
        not cell["whole"], 0 if cell["whole"] else -min(cell["done"][:2]), not cell["link"].startswith("100mbit")))


def figures_table(report):
    shown = columns(report)
    more = ["loss", "kB/step<br>up/down", "start/end,<br>s", "MB<br>site/server"]
    lines = ["| |" + "|".join([*(heading(*column).replace(": ", "<br>") for column in shown), *more]) + "|",
             "|---|" + "---:|" * (len(shown) + len(more))]
    for name, row in ROWS.items():
        cells = [cell_of(report, name, *column) for column in shown]
        one = next(iter(_measured(report, name, "1m") or _measured(report, name)), None)
        rest = ["-"] * len(more)
        if one:
            moved, memory = one["bytes_per_step"], one["machine_memory"]
            rest = [loss(one) if one["whole"] else "-", f"{moved['up'] / 1e3:.0f}/{moved['down'] / 1e3:.0f}",
                    f"{_around(one):.0f}",
                    f"{memory['site'] >> 20}/{memory['server'] >> 20 or '-'}"]
        shares = ["-" if name == "alone" and cell is None else _share(cell) for cell in cells]
        lines.append(f"|{row.label}|" + "|".join([*shares, *rest]) + "|")
    return "\n".join(lines)


def faults_table(report, why_not):
    """A row per peer and a column per fault; why_not(name, fault) says why a cell is empty."""
    lines = ["| |" + "|".join(SHORT.values()) + "|", "|---|" + "---|" * len(SHORT)]
    for name, row in ROWS.items():
        found = {fault: next((cell for cell in report["cells"].values()
                              if cell["row"] == row.label and cell["fault"] == fault), None) for fault in SHORT}
        if row.no_faults:
            lines.append(f"|{row.label}|{row.no_faults}" + "|" * len(SHORT))
            continue
        lines.append(f"|{row.label}|" + "|".join(
            cell["became"]["text"] if cell else why_not(name, fault) or "not run"
            for fault, cell in found.items()) + "|")
    return "\n".join(lines)


# --- What others do better -----------------------------------------------------------------------------


def better(report, name):
    """In what a row is ahead of ours, as texts, with ours in brackets, from what both have."""
    found = []
    pairs = [(cell_of(report, name, *column), cell_of(report, OURS, *column), column) for column in columns(report)]
    pairs = [(their, our, column) for their, our, column in pairs
             if their and our and "share" in their and "share" in our]
    ahead = [their["share"] - our["share"] for their, our, _ in pairs if their["share"] > our["share"] + 0.01]
    if ahead:
        found.append(f"computes {100 * max(ahead):.0f} % more of the time")
    losses = [(our["loss"] - their["loss"], heading(*column), their, our) for their, our, column in pairs
              if our["loss"] and their["loss"] and their["whole"] and their["loss"] < our["loss"] - _LOSS]
    if losses:
        _, where, their, our = max(losses, key=lambda one: one[0])
        found.append(f"{where}: loss {loss(their)} ({loss(our)})")
    if any(sum(their["bytes_per_step"].values()) < 0.95 * sum(our["bytes_per_step"].values()) for their, our, _ in pairs):
        found.append("fewer bytes")
    if any(their["machine_memory"]["site"] < 0.95 * our["machine_memory"]["site"] for their, our, _ in pairs):
        found.append("less memory")
    if any(_around(their) < _around(our) - 1 for their, our, _ in pairs):
        found.append("start/end")
    if pairs and not hasattr(ROWS[name].module, "server"):
        found.append("no server")
    for key, cell in report["cells"].items():
        ours = report["cells"].get(key.replace(name, OURS, 1))
        if key.startswith(name + "/") and cell["fault"] and ours and (how := _better_after(cell, ours)):
            found.append(f"{SHORT[cell['fault']]}: {', '.join(how)}")
    return found


def _better_after(their, our):
    """In what they are ahead of us after a fault."""
    found = []
    became, ours = their["became"], our["became"]
    if rank(became) < rank(ours):
        found.append(f"{became['text']} ({ours['text']})")
    elif "worse" in became and "worse" in ours:
        if became["worse"] < ours["worse"] - _LOSS:
            found.append(f"{became['worse']:+.3f} ({ours['worse']:+.3f})")
    elif their["loss"] and our["loss"] and their["loss"] < our["loss"] - _LOSS:
        found.append(f"loss {loss(their)} ({loss(our)})")
    hit = 2 if their["fault"] == "join" else 1
    # More steps of who came to no end, or to no model, are no merit.
    if their["finished"] and their["loss"] is not None and their["done"][hit] > our["done"][hit]:
        found.append(f"{their['done'][hit]} steps ({our['done'][hit]})")
    return found


def rank(became):
    """Of what became of a fault: smaller is better."""
    text = became["text"]
    order = ("goes on", "waits", "starts again", "NaN", "unfinished", "stands still", "ends")
    place = order.index("unfinished") if ", unfinished" in text else next(
        (number for number, word in enumerate(order) if text.startswith(word)), len(order))
    lost = any(word in text for word in ("without it", "a site ends", "one site unfinished"))
    return place, lost, round(became.get("waited_s", 0) / 5)


# --- The page --------------------------------------------------------------------------------------------


_PAGE = """\
# Beside what else there is

Two sites ({cores} cores for all, Linux {kernel}, {congestion}) and a server half-way train one PyTorch model on prose of this
machine's packages; [what synchronizes them](../../tests/peers/ways) differs. Steps take 0.1 s (10M: 0.3 s) or more.
Each ran once; losses after faults vary by 0.015.

```sh
tests/peers/run   # over an hour; root, /dev/net/tun
tests/peers/run --report   # this page, docs/figures/peers.svg
```

Computing, % (Mbit/s, ms, loss; * stopped after {limit:.0f} s), and a site with 1M over
100 Mbit/s, or its longest:

{figures}

![Time computing](../figures/peers.svg)

{differ}Faults after an eighth of the run (joiner: half; {at}), and loss gained; at {fault_limit:.0f} s "unfinished" (steps done), or
"stands still" ({still:.0f} s after the fault):

{faults}

{better}

Commit {commit}; {versions}; [figures](../figures/peers.json).
"""


def page(report, why_not):
    cells = report["cells"].values()
    calm, faulted = [cell for cell in cells if not cell["fault"]], [cell for cell in cells if cell["fault"]]
    differ = sorted({cell["row"] for cell in calm if cell["whole"] and not cell["equal"]} - {"alone"})
    fault_limit = max((cell["limit_s"] for cell in faulted), default=0)
    lines = [f"| |settings|ahead ({ROWS[OURS].label})|", "|---|---|---|"]
    for name, row in ROWS.items():
        if not row.settings:
            continue
        measured = any(key.startswith(name + "/") for key in report["cells"])
        said = "" if row.way == "causeway" else "; ".join(better(report, name)) if measured else "not run"
        lines.append(f"|{row.label}|{row.settings}|{said or '-'}|")
    versions = report["environment"]["versions"]
    return _PAGE.format(
        **{name: report["environment"][name] for name in ("cores", "kernel", "commit")},
        congestion=", ".join(sorted({cell["congestion"] for cell in cells})),
        limit=max((cell["limit_s"] for cell in calm), default=0), fault_limit=fault_limit, still=fault_limit / 4,
        figures=figures_table(report),
        differ=f"Sites end with different models: {', '.join(differ)}. " if differ else "",
        at=heading("1m", next((cell["link"] for cell in faulted), "0mbit,0ms")).partition(": ")[2],
        faults=faults_table(report, why_not), better="\n".join(lines),
        versions=", ".join(f"{name}=={version}" for name, version in versions.items()))


def figure(report):
    """As SVG text."""
    import plots
    groups = []
    for column in columns(report):
        bars = [(row.label + _mark(cell), cell["share"]) for name, row in ROWS.items()
                if (cell := cell_of(report, name, *column)) and "share" in cell]
        groups.append((heading(*column), bars))
    return plots.standalone(plots.shares(groups, "computing, % of the time"))


def write(report, root, why_not):
    """The page, its figure, and the measurements beside it; why_not as in faults_table."""
    figures = root / "docs/figures"
    (figures / "peers.svg").write_text(figure(report), encoding="utf-8")
    kept = {key: {name: value for name, value in cell.items() if name != "tails"}  # Tails name this machine's paths.
            for key, cell in report["cells"].items()}
    (figures / "peers.json").write_text(json.dumps(report | {"cells": kept}, indent=1) + "\n", encoding="utf-8")
    (root / "docs/reports").mkdir(exist_ok=True)
    (root / "docs/reports/peers.md").write_text(re.sub(r"\n{3,}", "\n\n", page(report, why_not)), encoding="utf-8")
