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
            kernel["limit"], _percent(kernel["limit_fraction"]),
            _gain(kernel["milliseconds_per_step"] * (1 - kernel["limit_fraction"]), total),
            f"{kernel['traced_milliseconds']:.2f}"))
    sums = [sum(kernel[key] for kernel in shape["kernels"])
            for key in ("milliseconds_per_step", "traced_milliseconds")]
    rows.append(("all of these", "", f"{sums[0]:.2f}", f"{100 * sums[0] / total:.1f} %", "", "", "",
                 "", "", f"{sums[1]:.2f}"))
    return _table(("kernel", "calls", "ms per step", "of the step", "TFLOP/s", "GB/s", "limit",
                   "of its limit", "the step less, at it", "ms in the traced step"), rows)


def _gain(milliseconds, total):
    """What a step would be shorter by, with the kernel at its limit."""
    return f"{100 * milliseconds / total:.1f} %"


def gap_table(trace):
    """The costliest times between kernels, of a step that was issued kernel by kernel."""
    return _table(("after", "before", "times", "ms per step"),
                  [(gap["after"], gap["before"], gap["count"], f"{gap['milliseconds']:.3f}")
                   for gap in trace["gaps"]])


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
                  f"Attention by {shape['attention']}.", "", kernel_table(shape), "",
                  f"The traced step, issued kernel by kernel, took {1e3 * shape['trace']['seconds']:.2f} ms, of which "
                  f"{1e3 * shape['trace']['gap_seconds']:.2f} in none of these.", "",
                  gap_table(shape["trace"])]
        if shape.get("muon_kernels"):
            with_muon = {"kernels": shape["muon_kernels"],
                         "seconds_per_step": shape["muon_seconds_per_step"]}
            parts += ["", "With Muon, whose step takes "
                          f"{1e3 * shape['muon_seconds_per_step']:.2f} ms:", "", kernel_table(with_muon)]
    return "\n".join(parts) + "\n"
