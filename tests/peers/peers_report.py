"""Of trainings: what became of a fault, the tables, the figure and docs/reports/peers.md."""

import json
import re

from ways import ROWS

OURS = "causeway-int4"
SHORT = {"site": "site killed", "server": "server killed", "cut": "link cut", "join": "third site joins",
         "nan": "NaN weights"}
_WAIT_S = 1.5  # A pause longer than the usual ones by this is a wait for something.
_SETTLED_S = 3  # By then the fault has done what it does at once.


# --- What became of a fault ---------------------------------------------------------------------------


def pauses(log):
    """(end, length) of the time between two steps."""
    times = [line["t"] for line in log if "step" in line]
    return [(after, after - before) for before, after in zip(times, times[1:])]


def judge(result, logs, undisturbed):
    """What a fault made of the training of those who were not hit, first of all of site 0. `undisturbed`: the same
    row's result without one, or None. Returns figures, and them as a text of a few words."""
    at, finished = result["fault_at"], set(result["finished"])
    site = logs[1 if finished == {"1"} else 0]
    other = logs[2 if result["fault"] == "join" else 1]
    if at is None:
        return {"text": "ended before the fault"}
    usual = max((length for end, length in pauses(site) if end <= at), default=0.0)
    if undisturbed:
        usual = max(usual, undisturbed["longest_pause_s"])
    steps = [line["step"] for line in site if "step" in line]
    last = max((line["t"] for line in site if "step" in line), default=at)
    became = {
        "waited_s": round(max([length for end, length in pauses(site) if end > at] + [0.0]), 1),
        "repeated_steps": len(steps) - len(set(steps)),
        "trained_after": any(line["t"] > at + _SETTLED_S for line in other if "step" in line),
        "begun_at": next((line["step"] for line in other if "step" in line and line["t"] > at + _SETTLED_S), None)}
    if undisturbed and finished:
        became["longer_s"] = round(result["wall_s"] - undisturbed["wall_s"], 1)
        became["more_bytes"] = round(result["steps"] * sum(
            result["bytes_per_step"][way] - undisturbed["bytes_per_step"][way] for way in ("up", "down")))
        if result["loss"] is not None and undisturbed["loss"] is not None:
            became["worse"] = round(result["loss"] - undisturbed["loss"], 4)
    if finished and result["loss"] is None:
        became["text"] = "NaN everywhere"
    elif finished:
        parts = ["starts again" if became["repeated_steps"] else
                 f"waits {became['waited_s']:.0f} s" if became["waited_s"] > usual + _WAIT_S else "goes on"]
        if result["fault"] in ("server", "cut") and len(finished) < len(result["expected"]):
            parts.append("a site ends")
        elif not became["trained_after"]:
            parts.append("without it")
        if "worse" in became:
            parts.append(f"{became['worse']:+.3f}")
        became["text"] = ", ".join(parts)
    elif result["stopped"] and last < at + result["limit_s"] / 4:
        became["text"] = "stands still"
    else:
        became["text"] = "unfinished" if result["stopped"] else "ends"
    return became


# --- Tables --------------------------------------------------------------------------------------------


def one_line(result):
    """Of a cell, for who waits for it."""
    text = f"{result['row']}: "
    if "wall_s" not in result:
        return text + "did not train: " + result.get("why", "")
    moved = result["bytes_per_step"]
    text += (f"{min(result['done'][:2])}/{result['steps']} steps, {result['wall_s']:.0f} s, computing "
             f"{100 * result['share']:.0f} %, {moved['up'] / 1e3:.1f}/{moved['down'] / 1e3:.1f} kB a step, "
             f"{result['memory']['site'] >> 20} MB, server {result['memory']['server'] >> 20} MB")
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
        return "-"
    if "share" not in cell:
        return "failed"
    return f"{100 * cell['share']:.0f}{'' if cell['whole'] else '*'}"


def _measured(report, name, model=None):
    """The cells of a row that trained, without faults, those over 100 Mbit/s first."""
    cells = [cell_of(report, name, *column) for column in columns(report) if model in (None, column[0])]
    cells = [cell for cell in cells if cell and "share" in cell]
    return sorted(cells, key=lambda cell: (not cell["whole"], not cell["link"].startswith("100mbit")))


def figures_table(report):
    shown = columns(report)
    lines = ["| |" + "|".join(heading(*column) for column in shown) + "|loss|kB up/down|MB site/server|",
             "|---|" + "---:|" * (len(shown) + 3)]
    for name, row in ROWS.items():
        cells = [cell_of(report, name, *column) for column in shown]
        if not any(cells):
            continue
        one = next(iter(_measured(report, name, "1m") or _measured(report, name)), None)
        rest = ["-"] * 3
        if one:
            moved, memory = one["bytes_per_step"], one["memory"]
            rest = [loss(one) if one["whole"] else "-", f"{moved['up'] / 1e3:.0f}/{moved['down'] / 1e3:.0f}",
                    f"{memory['site'] >> 20}/{memory['server'] >> 20 or '-'}"]
        lines.append(f"|{row.label}|" + "|".join([*map(_share, cells), *rest]) + "|")
    return "\n".join(lines)


def faults_table(report, why_not):
    """A row per peer and a column per fault; why_not(name, fault) says why a cell is empty."""
    lines = ["| |" + "|".join(SHORT.values()) + "|", "|---|" + "---|" * len(SHORT)]
    for name, row in ROWS.items():
        found = {fault: next((cell for cell in report["cells"].values()
                              if cell["row"] == row.label and cell["fault"] == fault), None) for fault in SHORT}
        if not any(found.values()):
            continue
        lines.append(f"|{row.label}|" + "|".join(
            cell["became"]["text"] if cell else why_not(name, fault) or "not run"
            for fault, cell in found.items()) + "|")
    return "\n".join(lines)


# --- What others do better -----------------------------------------------------------------------------


def better(report, name):
    """In what a row is ahead of ours, as texts, from what both have."""
    found = []
    pairs = [(cell_of(report, name, *column), cell_of(report, OURS, *column), column) for column in columns(report)]
    pairs = [(their, our, column) for their, our, column in pairs
             if their and our and "share" in their and "share" in our]
    ahead = [their["share"] - our["share"] for their, our, _ in pairs if their["share"] > our["share"] + 0.01]
    if ahead:
        found.append(f"computes {100 * max(ahead):.0f} % more of the time")
    losses = [(our["loss"] - their["loss"], column) for their, our, column in pairs
              if our["loss"] and their["loss"] and their["whole"] and their["loss"] < our["loss"] - 0.002]
    if losses:
        most, (model, link) = max(losses)
        found.append(f"loss {most:.3f} lower ({heading(model, link)})")
    for key, text, unit in (("bytes_per_step", "fewer bytes", ("up", "down")),
                            ("memory", "less memory", ("site",))):
        total = [(sum(their[key][one] for one in unit), sum(our[key][one] for one in unit)) for their, our, _ in pairs]
        if any(their < 0.95 * our for their, our in total):
            found.append(text)
    if pairs and not pairs[0][0]["memory"]["server"]:
        found.append("no server")
    return found + [f"{SHORT[cell['fault']]}: {cell['became']['text']} (ours: {ours['became']['text']})"
                    for key, cell in report["cells"].items()
                    if key.startswith(name + "/") and cell["fault"]
                    and (ours := report["cells"].get(key.replace(name, OURS, 1)))
                    and rank(cell["became"]) < rank(ours["became"])]


def rank(became):
    """Of what became of a fault: smaller is better."""
    text = became["text"]
    order = ("goes on", "waits", "starts again", "NaN", "unfinished", "stands still", "ends")
    place = next((number for number, word in enumerate(order) if text.startswith(word)), len(order))
    return place, "without it" in text, round(became.get("waited_s", 0) / 5)


# --- The page --------------------------------------------------------------------------------------------


_PAGE = """\
# Beside what else there is

Two sites ({cores} cores for all, Linux {kernel}) train one PyTorch model on, on one text, for as many steps, over emulated
links; only what synchronizes them differs ([code](../../tests/peers/ways)), tuned as its users would. A server stands
half-way. A step takes 0.1 s (10M: 0.3 s) or more; "alone" hears of nobody.

```sh
tests/peers/run            # {minutes} minutes
tests/peers/run --report
```

Share of the time spent computing, %, by model and link (Mbit/s, ms, loss; * stopped after {limit:.0f} s). Held-out
loss, a site's interface kB per step, and peak MB, PyTorch included, of 1M over 100 Mbit/s, or over 1000 if only that ended:

{figures}

![Share of the time spent computing](../figures/peers.svg)

{differ}Faults after an eighth of the run ({at}), and the loss beside the undisturbed run's:

{faults}

Causeway: {ours}. What others (their settings) do better than its int4:

{better}

Commit {commit}; {versions}; [figures](../figures/peers.json).
"""


def page(report, why_not):
    cells = report["cells"].values()
    calm = [cell for cell in cells if not cell["fault"]]
    differ = sorted({cell["row"] for cell in calm if cell["whole"] and not cell["equal"]})
    limit = max((cell["limit_s"] for cell in calm), default=0)
    lines = []
    for name, row in ROWS.items():
        if name.startswith("causeway") or name == "alone" or not any(key.startswith(name + "/") for key in report["cells"]):
            continue
        lines.append(f"- **{row.label}** ({row.settings}): "
                     f"{'; '.join(better(report, name)) or 'nothing here'}.")
    versions = report["environment"]["versions"]
    return _PAGE.format(
        **{name: report["environment"][name] for name in ("cores", "kernel", "commit")}, limit=limit,
        minutes=round(sum(cell["took_s"] for cell in cells) / 60), figures=figures_table(report),
        differ=f"Sites end with different models: {', '.join(differ)}. " if differ else "",
        at=heading("1m", next((cell["link"] for cell in cells if cell["fault"]), "0mbit,0ms")).partition(": ")[2],
        ours=", ".join(f"{row.variant} {row.settings}" for row in ROWS.values() if row.way == "causeway"),
        faults=faults_table(report, why_not), better="\n".join(lines),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()))


def figure(report):
    """As SVG text."""
    import plots
    groups = []
    for column in columns(report):
        bars = [(row.label, cell["share"]) for name, row in ROWS.items()
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
