"""The plots of experiments and comparisons, as SVG text."""

import io
import re
import sys
import warnings

try:
    import matplotlib
except ImportError:
    sys.exit("matplotlib draws the figures, and is missing: "
             "deploy/install_packages packages_figures installs it")

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (after the backend is chosen)
from matplotlib.ticker import MaxNLocator  # noqa: E402
import numpy as np  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles repeat the
# distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")
INK = "#1f2933"
_GRID = "#e4e7eb"
_SIZE_INCHES = (5.3, 3.4)  # Narrow enough for its text to stay readable on a phone.


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
