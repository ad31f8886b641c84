"""The results as Markdown."""


def _number(value, digits=3):
    return f"{value:,.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def _table(head, rows):
    lines = ["| " + " | ".join(head) + " |",
             "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _percent(value):
    return "" if value is None else f"{100 * value:.0f} %"


def throughput_table(shapes, torch_shapes):
    rows = []
    for model, row in shapes.items():
        torch = torch_shapes.get(model)
        rows.append((
            model, row["sequence_length"], _number(row["tokens_per_second"]),
            _percent(row["mfu"]), _number(row["roofline_tokens_per_second"]),
            _percent(row["roofline_fraction"]), _percent(row["kernels_fraction"]),
            _number(torch["tokens_per_second"]) if torch else "",
            f"{torch['ratio']:.2f}" if torch else ""))
    return _table(("model", "T", "tokens/s", "MFU", "roofline tokens/s", "of the roofline",
                   "in kernels", "PyTorch tokens/s", "ratio"), rows)


def kernel_table(shape):
    """Where a step's time goes: kernels timed alone, the costliest first."""
    total = 1e3 * shape["seconds_per_step"]
    rows = []
    for kernel in sorted(shape["kernels"], key=lambda k: -k["milliseconds_per_step"]):
        rows.append((
            kernel["name"], kernel["calls_per_step"], f"{kernel['milliseconds_per_step']:.2f}",
            f"{100 * kernel['milliseconds_per_step'] / total:.1f} %",
            _number(kernel["tflops"]) if kernel.get("tflops") else "",
            _number(kernel["gb_per_s"]) if kernel.get("gb_per_s") else "",
            kernel["limit"], _percent(kernel["limit_fraction"])))
    alone = sum(kernel["milliseconds_per_step"] for kernel in shape["kernels"])
    rows.append(("all of these", "", f"{alone:.2f}", f"{100 * alone / total:.1f} %", "", "", "",
                 ""))
    return _table(("kernel", "calls", "ms per step", "of the step", "TFLOP/s", "GB/s", "limit",
                   "of its limit"), rows)


def _bench_shapes(results, compared):
    """Of this run, or of the one that it is compared with."""
    bench = results["bench"].data if "bench" in results else {}
    return bench.get("shapes") or compared.get("bench", {}).get("shapes", {})


def summary(results, compared):
    """What a screen has room for: the parts, and throughput."""
    parts = ["# GPU report", "",
             _table(("part", "result", "seconds", "what"),
                    [(r.part, r.status, f"{r.seconds:.0f}", r.reason.replace("|", "/"))
                     for r in results.values()])]
    shapes = _bench_shapes(results, compared)
    if shapes:
        torch = results["torch"].data.get("shapes", {}) if "torch" in results else {}
        parts += ["", "## Throughput", "", throughput_table(shapes, torch)]
        first = next(iter(shapes.values()))
        parts += ["", "Measured beside it, before and after: " + ", ".join(
            f"{name.replace('_', ' ')} {_number(value)} "
            f"({100 * first['rates_spread'][name]:.1f} % apart)"
            for name, value in first["rates"].items()) + "."]
    return "\n".join(parts) + "\n"


def markdown(results, compared):
    """Everything."""
    parts = [summary(results, compared).rstrip()]
    for model, shape in _bench_shapes(results, compared).items():
        parts += ["", f"## Where a step of {model} goes", "",
                  f"Attention by {shape['attention']}.", "", kernel_table(shape)]
    return "\n".join(parts) + "\n"
