"""A report as one HTML file that needs nothing but itself."""

import datetime
import html

from causeway_run import plots, units
from causeway_run.output import Run

_MOST_ROUNDS = 400

_STYLE = """
:root { color-scheme: light; --ink: #1f2933; --soft: #52606d; --line: #e4e7eb; --blue: #0072B2; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7fa; color: var(--ink);
       font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 1.12rem; margin: 0 0 10px; }
p { margin: 0 0 10px; max-width: 75ch; }
.soft, small { color: var(--soft); }
small { display: inline-block; line-height: 1.35; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px;
          margin-top: 18px; min-width: 0; }
.cards, .plots { display: grid; gap: 18px; margin-top: 18px; }
.cards { grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
.cards section, .plots section { margin: 0; }
.number { font-size: 1.85rem; font-weight: 650; line-height: 1.15;
          font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.bar { display: grid; grid-template-columns: 12em 1fr; gap: 2px 14px; align-items: center;
       margin: 10px 0; }
.bar div { min-width: 0; }
.track { background: #eef1f4; border-radius: 3px; }
.fill { height: 16px; min-width: 2px; border-radius: 3px; background: #9aa5b1; }
.fill.ours { background: var(--blue); }
.scroll { overflow: auto; max-height: 420px; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
        white-space: nowrap; min-width: 100%; }
th, td { text-align: right; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: #fff; color: var(--soft); font-weight: 600; }
td.words, th.words { text-align: left; }
pre { margin: 0; font: .82rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace;
      white-space: pre-wrap; overflow-wrap: anywhere; }
.notes { border-color: #D55E00; }
svg { display: block; width: 100%; height: auto; }
@media (max-width: 560px) {
  main { padding: 18px 12px 40px; }
  section { padding: 14px; }
  .cards { grid-template-columns: 1fr 1fr; gap: 10px; }
  .cards section:last-child:nth-child(odd) { grid-column: 1 / -1; }
  .plots { gap: 10px; }
  .number { font-size: 1.4rem; }
  .bar { grid-template-columns: 1fr; }
  .fill { height: 12px; }
}
"""

_MODE_NAMES = {
    "streaming": "Streaming DiLoCo",
    "diloco": "DiLoCo",
    "data-parallel": "Data parallelism",
}


def _e(value) -> str:
    return html.escape(str(value))


def _or_unknown(value, form) -> str:
    return "unknown" if value is None else form(value)


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def render(run: Run, figures: dict, sample: str | None) -> str:
    """The whole page."""
    mode = _MODE_NAMES.get(figures["mode"], "A run")
    title = f"{mode}: {_plural(figures['workers'], 'worker')}"
    body = [
        f"<h1>{_e(title)}</h1>",
        f'<p class="soft">{_e(_subtitle(figures, run))}</p>',
        _notes(figures["notes"]),
        _cards(figures),
        f'<div class="plots">{_savings(figures)}{_plots(run, figures)}</div>',
        _workers(figures),
        _rounds(run),
        _sample(sample),
        _configuration(run),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_e(title)} - Causeway</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _subtitle(figures: dict, run: Run) -> str:
    parts = []
    if figures["params"] is not None:
        parts.append(f"{units.count(figures['params'])} parameters")
    parts.append(f"{_plural(figures['steps'], 'step')} per worker")
    parts.append(f"{units.count(figures['tokens'])} tokens in all")
    if figures["wall_seconds"] is not None:
        parts.append(f"trained in {units.duration(figures['wall_seconds'])}")
    times = [row["unix_s"] for worker in run.workers for row in worker.rows("start")]
    if times:
        moment = datetime.datetime.fromtimestamp(min(times), datetime.timezone.utc)
        parts.append(f"{moment:%Y-%m-%d %H:%M} UTC")
    if figures["run_id"]:
        parts.append(figures["run_id"])
    return ", ".join(parts)


def _notes(notes: list[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{_e(note)}</li>" for note in notes)
    return ('<section class="notes"><h2>This run is incomplete</h2>'
            f"<p>The figures cover what there is.</p><ul>{items}</ul></section>")


def _card(name: str, number: str, detail: str) -> str:
    return (f'<section><div class="soft">{_e(name)}</div><div class="number">{_e(number)}</div>'
            f"<small>{_e(detail)}</small></section>")


def _saving(ratio: float | None) -> tuple[str, str]:
    if ratio is None:
        return "unknown", "no bytes were moved"
    if ratio >= 1.05:
        return f"{units.times(ratio)}×", "fewer bytes than bf16 gradients at every step"
    if ratio > 0.95:
        return "1×", "the bytes of bf16 gradients at every step"
    return f"{units.times(1 / ratio)}×", "more bytes than bf16 gradients at every step"


def _cards(figures: dict) -> str:
    initial = figures["initial_loss"]
    utilization = figures["compute_utilization"]["mean"]
    checks, wrong = figures["hash_checks"], figures["hash_mismatches"]
    if checks is None:
        hashes = "hashes unknown"
    elif wrong:
        hashes = f"{wrong} of {checks} hash checks FAILED"
    else:
        hashes = f"{checks} hash checks, all equal"
    cards = [
        _card("Held-out loss", _or_unknown(figures["eval_loss"], "{:.3f}".format),
              "nats per byte, published parameters"
              + ("" if initial is None else f"; {initial:.2f} at the start")),
        _card("Network", *_saving(figures["data_parallel_ratio"])),
        _card("Computing", _or_unknown(utilization, units.percent),
              "of the training time without evaluations, mean of the workers"),
        _card("Speed", _or_unknown(figures["tokens_per_second"], units.count),
              "tokens per second, all workers"),
        _card("Fragment rounds", str(figures["rounds"]), hashes),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _savings(figures: dict) -> str:
    names = list(figures["bytes_up"])
    one_way = figures["data_parallel_bytes_up"]
    if not names or not one_way:
        return ""
    up = sum(figures["bytes_up"].values()) / len(names)
    down = sum(figures["bytes_down"].values()) / len(names)
    longest = max(up, down, one_way)
    rows = [("This run, up", up, " ours"), ("This run, down", down, " ours"),
            ("bf16 every step, up", one_way, ""), ("bf16 every step, down", one_way, "")]
    bars = "".join(
        f'<div>{_e(name)}<br><small>{_e(units.size(value))}</small></div>'
        f'<div class="track"><div class="fill{kind}" style="width:{100 * value / longest:.2f}%">'
        "</div></div>"
        for name, value, kind in rows
    )
    per_sync = figures["bytes_per_param_per_sync"]
    sentence = (
        "What one worker moved, and what data parallelism with bf16 gradients would have moved in "
        f"the same {_plural(figures['steps'], 'step')}."
    )
    if per_sync["up"] is not None and per_sync["down"] is not None:
        sentence += (f" One synchronization of the whole model costs {per_sync['up']:.3f} bytes "
                     f"per parameter up and {per_sync['down']:.3f} down.")
    states = [value for value in figures["state_bytes_down"].values() if value]
    if states:
        sentence += (f" Down includes {units.size(sum(states) / len(names))} of parameters fetched "
                     "when joining.")
    return (f'<section><h2>Bytes per worker</h2><p class="soft">{_e(sentence)}</p>'
            f'<div class="bar">{bars}</div></section>')


def _plots(run: Run, figures: dict) -> str:
    rate = None
    if figures["data_parallel_bytes_up"] and figures["wall_seconds"]:
        rate = figures["data_parallel_bytes_up"] * figures["workers"] / figures["wall_seconds"]
    pace = "" if rate is None else f" bf16 gradients at this pace: {units.size(rate)}/s each way."
    parts = [
        ("Loss", "Training loss is a mean over the last steps.",
         plots.losses(run, figures["eval_curve"])),
        ("Bytes per second",
         f"Fragments up to and down from the coordinator, all workers, after joining.{pace}",
         plots.traffic(run)),
        ("Utilization", "Time in training steps; the rest is waiting, merging and evaluation.",
         plots.utilization(run)),
    ]
    return "".join(
        f'<section><h2>{_e(title)}</h2><p class="soft">{_e(text)}</p>{svg}</section>'
        for title, text, svg in parts if svg
    )


def _table(head: list[tuple[str, bool]], rows: list[list[str]]) -> str:
    """head: (title, whether it holds words)."""
    def cell(tag: str, index: int, text: str) -> str:
        words = ' class="words"' if head[index][1] else ""
        return f"<{tag}{words}>{_e(text)}</{tag}>"

    top = "".join(cell("th", i, title) for i, (title, _) in enumerate(head))
    body = "".join(
        f"<tr>{''.join(cell('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows
    )
    return (f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody>'
            "</table></div>")


def _workers(figures: dict) -> str:
    rows = []
    for name in figures["bytes_up"]:
        rows.append([
            name,
            _or_unknown(figures["train_loss"].get(name), "{:.3f}".format),
            _or_unknown(figures["tokens_per_second_per_worker"].get(name), units.count),
            _or_unknown(figures["compute_utilization"].get(name), units.percent),
            _or_unknown(figures["blocked_seconds"].get(name), "{:.2f} s".format),
            units.size(figures["bytes_up"][name]),
            units.size(figures["bytes_down"][name]),
        ])
    if not rows:
        return ""
    head = [("worker", True), ("training loss", False), ("tokens/s", False), ("computing", False),
            ("blocked", False), ("up", False), ("down", False)]
    return f"<section><h2>Workers</h2>{_table(head, rows)}</section>"


def _hash_text(value) -> str:
    text = f"{value:016x}" if isinstance(value, int) else str(value or "")
    return text.removeprefix("0x")[:8]


def _round_row(row: dict) -> list[str]:
    milliseconds = 1000 * (row["published_unix_s"] - row["first_unix_s"])
    weights = row.get("weights", [])
    shares = [f"{name} {100 * weight:.0f} %" for name, weight in
              zip(row.get("contributors", []), weights)]
    return [
        str(row["fragment"]), str(row["round"]), str(row.get("send_step", "")),
        ", ".join(shares or row.get("contributors", [])),
        units.size(row.get("bytes_in", 0)), units.size(row.get("bytes_out", 0)),
        f"{milliseconds:.0f} ms", _hash_text(row.get("published_hash")), row.get("reason", ""),
    ]


def _rounds(run: Run) -> str:
    if not run.rounds:
        return "<section><h2>Rounds</h2><p>No round was completed.</p></section>"
    rows = run.rounds
    omitted = ""
    if len(rows) > _MOST_ROUNDS:
        omitted = f" The last {_MOST_ROUNDS} of {len(rows)}."
        rows = rows[-_MOST_ROUNDS:]
    head = [("fragment", False), ("round", False), ("sent after step", False),
            ("contributors and weights", True), ("in", False), ("out", False),
            ("took", False), ("hash", True), ("closed because", True)]
    table = _table(head, [_round_row(row) for row in rows])
    return ('<section><h2>Rounds</h2><p class="soft">One line for every merge of one fragment, '
            f"with the time from its first byte to its publication.{_e(omitted)}</p>{table}"
            "</section>")


def _sample(sample: str | None) -> str:
    if not sample:
        return ""
    return ('<section><h2>Sample</h2><p class="soft">The first 64 tokens are held-out text; '
            'the trained model wrote the rest.</p>'
            f'<div class="scroll"><pre>{_e(sample)}</pre></div></section>')


def _configuration(run: Run) -> str:
    if not run.config_text:
        return ""
    return (f'<section><h2>Configuration</h2><div class="scroll"><pre>{_e(run.config_text)}</pre>'
            "</div></section>")
