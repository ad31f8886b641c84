"""The plots of reports, as SVG text."""

import io
import re
import warnings

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the backend is chosen)
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402
import numpy as np  # noqa: E402

from causeway_run import units  # noqa: E402
from causeway_run.output import Run, Worker  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles repeat the
# distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
INK = "#1f2933"
_GRID = "#e4e7eb"
_SIZE_INCHES = (5.3, 3.4)  # Narrow enough for its text to stay readable on a phone.
_BINS = 60


def _figure(rows: int = 1, size_inches: tuple[float, float] = _SIZE_INCHES):
    """A figure and its axes: one, or an array of as many as there are rows."""
    plt.rcParams.update({
        "svg.fonttype": "none", "svg.hashsalt": "causeway", "font.size": 12,
        "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"],
        "axes.edgecolor": "#9aa5b1", "axes.labelcolor": INK, "text.color": INK,
        "xtick.color": "#52606d", "ytick.color": "#52606d", "legend.frameon": False,
    })
    figure, axes = plt.subplots(rows, figsize=size_inches, layout="constrained")
    for one in np.atleast_1d(axes):
        one.spines[["top", "right"]].set_visible(False)
        one.grid(True, color=_GRID, linewidth=0.8)
        one.set_axisbelow(True)
    return figure, axes


def _svg(figure, title: str) -> str:
    """An <svg> element that fills its container's width."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None},
                       transparent=True)
    plt.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg"):]
    head, brace, rest = text.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)  # The page decides; viewBox has the ratio.
    text = head + brace + rest
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def standalone(svg: str) -> str:
    """The same element as a file of its own."""
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    head, brace, rest = svg.partition(">")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}{brace}\n{background}{rest}\n'


def _style(index: int) -> dict:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": STYLES[index % len(STYLES)]}


def smooth(values, window: int) -> np.ndarray:
    """Mean of each value and up to window - 1 before it."""
    values = np.asarray(values, dtype=float)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    return (sums[ends] - sums[begins]) / (ends - begins)


def _limit_losses(axes, highest: float, lowest: float) -> None:
    """The first steps fall so fast that they would flatten everything after them."""
    if np.isfinite([highest, lowest]).all() and highest > lowest:
        margin = 0.04 * (highest - lowest)
        axes.set_ylim(lowest - margin, highest + margin)


def losses(run: Run, eval_curve: list[list[float]]) -> str:
    """Training loss of each worker, and held-out loss of the published parameters."""
    figure, axes = _figure()
    lowest = np.inf
    highest = -np.inf
    for index, worker in enumerate(run.workers):
        rows = worker.rows("step")
        if not rows:
            continue
        steps = [row["step"] for row in rows]
        values = smooth([row["train_loss"] for row in rows], max(1, len(rows) // 50))
        axes.plot(steps, values, linewidth=1.3, label=f"{worker.name}, training", **_style(index))
        lowest, highest = min(lowest, values.min()), max(highest, values.max())
    if eval_curve:
        steps, values = zip(*eval_curve)
        axes.plot(steps, values, color=INK, marker="o", markersize=4, linewidth=1.8,
                  label="published, held out")
        axes.annotate(f"{values[-1]:.3f}", (steps[-1], values[-1]), xytext=(0, 8),
                      textcoords="offset points", ha="right", fontweight="bold")
        lowest, highest = min(lowest, *values), max(highest, *values)
    _limit_losses(axes, highest, lowest)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per byte")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right")
    return _svg(figure, "Loss over steps")


def _cumulative(worker: Worker, name: str) -> tuple[np.ndarray, np.ndarray]:
    # From the first step on: the parameters fetched when joining would dwarf every round.
    rows = worker.rows("step")
    return (np.array([row["unix_s"] for row in rows], dtype=float),
            np.array([row.get(name, 0) for row in rows], dtype=float))


def _time_range(run: Run) -> tuple[float, float] | None:
    times = [row["unix_s"] for worker in run.workers for row in worker.rows("step")]
    if len(times) < 2 or min(times) == max(times):
        return None
    return min(times), max(times)


def _per_second(times: np.ndarray, values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Growth per second of a cumulative count in each bin."""
    inside = np.interp(edges, times, values)
    return np.diff(inside) / np.diff(edges)


def _seconds_axis(axes) -> None:
    axes.set_xlabel("time, minutes:seconds")
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 1.5, 3, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: units.duration(x)))


def traffic(run: Run) -> str | None:
    """Bytes per second of all workers together, up and down."""
    span = _time_range(run)
    if span is None:
        return None
    edges = np.linspace(*span, _BINS + 1)
    figure, axes = _figure()
    for index, (label, name) in enumerate((("up", "bytes_up"), ("down", "bytes_down"))):
        total = np.zeros(_BINS)
        for worker in run.workers:
            times, values = _cumulative(worker, name)
            if len(times) > 1:
                total += _per_second(times, values, edges)
        axes.stairs(total, edges - span[0], baseline=None, label=label, linewidth=1.6,
                    **_style(index))
    axes.set_ylim(0, 1.2 * axes.get_ylim()[1])
    _seconds_axis(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{units.size(y)}/s"))
    axes.legend(loc="upper right", ncols=2)
    return _svg(figure, "Bytes per second over time")


def utilization(run: Run) -> str | None:
    """Share of the time that each worker spent computing."""
    span = _time_range(run)
    if span is None:
        return None
    edges = np.linspace(*span, _BINS // 2 + 1)
    figure, axes = _figure()
    for index, worker in enumerate(run.workers):
        times, values = _cumulative(worker, "compute_s")
        if len(times) < 2:
            continue
        share = 100 * _per_second(times, values, edges)
        outside = (edges[1:] <= times[0]) | (edges[:-1] >= times[-1])
        share[outside] = np.nan
        axes.stairs(np.minimum(share, 100), edges - span[0], baseline=None, label=worker.name,
                    linewidth=1.6, **_style(index))
    _seconds_axis(axes)
    axes.set_ylabel("computing, % of the time")
    axes.set_ylim(0, 105)
    axes.legend(loc="lower right")
    return _svg(figure, "Utilization over time")


def compare_losses(curves: list[tuple[str, list[list[float]]]]) -> str:
    """Held-out losses of several runs: (label, [[step, loss], ...])."""
    figure, axes = _figure()
    for index, (label, curve) in enumerate(curves):
        steps, values = zip(*curve)
        axes.plot(steps, values, marker="osD^"[index % 4], markersize=4, linewidth=1.6,
                  label=f"{label}: {values[-1]:.3f}", **_style(index))
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss, nats per byte")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.legend(loc="upper right")
    return _svg(figure, "Held-out loss of several runs")


def compare_differences(panels: list[tuple[str, list[tuple[str, list[float], float | None]],
                                           tuple[float, float]]], label: str) -> str:
    """How settings differ from a baseline: (title, [(setting, difference of each seed, half-width of
    the mean's interval or None), ...], (lowest, highest) shown) per panel, one above the other. A
    mean outside of what is shown becomes an arrow with its value."""
    count = sum(len(rows) for _, rows, _ in panels)
    figure, all_axes = _figure(len(panels), (8, 0.34 * count + 0.9 * len(panels)))
    for axes, (title, rows, (low, high)), colour in zip(np.atleast_1d(all_axes), panels, COLOURS):
        axes.axvline(0, color=INK, linewidth=1)
        for place, (_, values, interval) in enumerate(rows):
            mean = float(np.mean(values))
            if not low <= mean <= high:
                edge, inward = (high, -10) if mean > high else (low, 10)
                axes.plot([edge], [place], marker=">" if mean > high else "<", color=colour,
                          markersize=7, clip_on=False)
                axes.annotate(f"{mean:+.3f}", (edge, place), xytext=(inward, 0), va="center",
                              textcoords="offset points", ha="right" if mean > high else "left")
                continue
            if interval is not None:
                axes.plot(np.clip([mean - interval, mean + interval], low, high), [place, place],
                          color=colour, linewidth=2)
            axes.plot(values, [place] * len(values), "o", color="#ffffff", markersize=5,
                      markeredgecolor=colour)
            axes.plot([mean], [place], "D", color=colour, markersize=6)
        axes.set_yticks(range(len(rows)), [setting for setting, _, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(low, high)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    np.atleast_1d(all_axes)[-1].set_xlabel(label)
    return _svg(figure, label)


def compare_gaps(panels: list[tuple[str, dict[str, list[tuple[float, float, float | None]]], bool]],
                 label: str) -> str:
    """Differences from a baseline: (title, {setting: [(place, mean, half-width of its interval or None),
    ...]}, whether places are few that double) per panel, one above the other."""
    figure, all_axes = _figure(len(panels), (6.5, 3.1 * len(panels)))
    names = list(dict.fromkeys(name for _, lines, _ in panels for name in lines))
    for axes, (title, lines, doubles) in zip(np.atleast_1d(all_axes), panels):
        axes.axhline(0, color=INK, linewidth=1)
        for name, points in lines.items():
            index = names.index(name)
            places, means, widths = zip(*sorted(points))
            # Bars beside each other.
            shift = 1 + 0.03 * (index - (len(names) - 1) / 2) if doubles else 1
            axes.errorbar(np.array(places) * shift, means, yerr=[width or 0 for width in widths],
                          marker="osD^"[index % 4] if doubles else None, markersize=5, linewidth=1.5,
                          capsize=3 if doubles else 0, label=name, **_style(index))
        if doubles:
            shown = sorted({place for points in lines.values() for place, _, _ in points})
            axes.set_xscale("log")
            axes.set_xticks(shown, [f"{place:.3g}" for place in shown])
            axes.minorticks_off()
        axes.set_ylabel(label)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        # Room for the legend below all lines: a line of text is about a tenth of the panel.
        low, high = axes.get_ylim()
        axes.set_ylim(low - (high - low) * (len(lines) + 1) / 10, high)
        axes.legend(loc="lower right", fontsize=10)
    return _svg(figure, label)


def link_rates(panels: list[tuple[str, list[float], list[float]]], bin_seconds: float) -> str:
    """What runs ask of a link: (label, Mbit/s up and Mbit/s down in every bin) of each, one above
    the other with the same axes."""
    figure, all_axes = _figure(len(panels), (8, 1.9 * len(panels) + 0.4))
    highest = max(max(up + down) for _, up, down in panels)
    longest = max(len(up) for _, up, _ in panels) * bin_seconds
    for axes, (label, up, down) in zip(np.atleast_1d(all_axes), panels):
        edges = bin_seconds * np.arange(len(up) + 1)
        axes.stairs(up, edges, fill=True, alpha=0.75, color=COLOURS[0], label="up")
        axes.stairs(down, edges[:len(down) + 1], color=COLOURS[1], linewidth=1.2, label="down")
        axes.set_title(f"{label}: at most {max(up + down):.3g} Mbit/s", loc="left", fontsize=12,
                       fontweight="bold")
        axes.set_xlim(0, longest)
        axes.set_ylim(0, 1.08 * highest)
        axes.set_ylabel("Mbit/s")
    np.atleast_1d(all_axes)[0].legend(loc="upper right", ncols=2)
    np.atleast_1d(all_axes)[-1].set_xlabel("time, seconds")
    return _svg(figure, "Rate of a worker's link over time")


def shares(groups: list[tuple[str, list[tuple[str, float]]]], label: str) -> str:
    """Bars of shares of 1, as per cent: (title, [(name, share), ...]) of each group."""
    count = sum(len(rows) for _, rows in groups)
    figure, all_axes = _figure(len(groups), (8, 0.36 * count + 0.8 * len(groups)))
    for axes, (title, rows) in zip(np.atleast_1d(all_axes), groups):
        for place, (_, share) in enumerate(rows):
            axes.barh(place, 100 * share, height=0.62, color=COLOURS[place % len(COLOURS)])
            inside = share > 0.85
            axes.annotate(f"{100 * share:.1f} %", (100 * share, place), va="center",
                          xytext=(-6 if inside else 6, 0), textcoords="offset points",
                          ha="right" if inside else "left", color="#ffffff" if inside else INK)
        axes.set_yticks(range(len(rows)), [name for name, _ in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, 100)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    np.atleast_1d(all_axes)[-1].set_xlabel(label)
    return _svg(figure, label)


def utilization_curves(curves: list[dict]) -> str:
    """Share of the time spent computing against the links' rate: a plot per model, a line per mode.

    A curve is {"model", "mode", "points": [(bits per second, share)]}."""
    models = list(dict.fromkeys(curve["model"] for curve in curves))
    modes = list(dict.fromkeys(curve["mode"] for curve in curves))
    figure, axes = _figure(rows=len(models), size_inches=(5.3, 2.5 * len(models)))
    for one, model in zip(np.atleast_1d(axes), models):
        for curve in curves:
            if curve["model"] != model:
                continue
            rates, shares = zip(*curve["points"])
            one.plot(np.array(rates) / 1e9, 100 * np.array(shares), linewidth=1.6,
                     label=curve["mode"], **_style(modes.index(curve["mode"])))
        one.set_xscale("log")
        one.set_ylim(0, 103)
        one.set_title(f"{model} parameters", fontsize=12)
        one.set_ylabel("computing, %")
    np.atleast_1d(axes)[-1].set_xlabel("each site's link, Gbit/s")
    np.atleast_1d(axes)[-1].legend(loc="center right", fontsize=9)
    return _svg(figure, "Share of the time spent computing over the links' rate")
