"""A plain PyTorch loop, first without Causeway and then as a site of a run. Prints one JSON object.

usage: torch_site.py SETTINGS.json, with {"coordinator", "id", "values", "way": "eager", "compiled" or
"captured", "plain_steps", "micro_batch", "batch", "meet": FOLDER, "processes"}

The model is the run's, as torch_baseline.py builds it. Every step is timed until the device is done with it. A
captured one, the optimizer's part included, is a CUDA graph that is replayed. With several processes, each of which has
a file in FOLDER, they begin together.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch_baseline import Transformer, make_step

import causeway
import causeway.torch as cw


def meet(settings, phase):
    folder = Path(settings["meet"])
    (folder / f"{settings['id']}.{phase}").touch()
    while len(list(folder.glob(f"*.{phase}"))) < settings["processes"]:
        time.sleep(0.01)


def captured(step):
    """Replays of the step, as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # What is made at the first steps is no part of the graph.
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def figures(seconds):
    return {"median": statistics.median(seconds), "mean": statistics.mean(seconds),
            "most": max(seconds), "count": len(seconds)}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        settings = json.load(file)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settle = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    if device.type == "cpu":
        torch.set_num_threads(1)
    model = causeway.describe(settings["coordinator"])["config"]["model"]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    transformer = Transformer(model).to(device)
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-4, betas=(0.9, 0.95),
                                  fused=device.type == "cuda",
                                  capturable=settings["way"] == "captured")
    trained = torch.compile(transformer) if settings["way"] == "compiled" else transformer
    step = make_step(model, trained, optimizer, settings, device)
    if settings["way"] == "captured":
        step = captured(step)
    for _ in range(3):
        step()
    settle()
    meet(settings, "plain")
    plain = []
    for _ in range(settings["plain_steps"]):
        begin = time.monotonic()
        step()
        settle()
        plain.append(time.monotonic() - begin)
    meet(settings, "join")
    before = torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0
    joined, in_causeway = [], []
    begin = time.monotonic()
    tensors = {name: tensor for _, parts in transformer.run_tensors() for name, tensor in parts.items()}
    with cw.join(settings["coordinator"], tensors, id=settings["id"],
                 values=settings["values"],
                 tokens_per_step=settings["batch"] * model["sequence_length"]) as site:
        join_s = time.monotonic() - begin
        taken = before - torch.cuda.mem_get_info()[0] if device.type == "cuda" else 0
        while not site.should_stop:
            begin = time.monotonic()
            step()
            called = time.monotonic()
            site.step()
            in_causeway.append(time.monotonic() - called)
            settle()
            joined.append(time.monotonic() - begin)
    # The last one waits for all that is under way.
    joined, in_causeway = joined[:-1], in_causeway[:-1]
    plain, whole = figures(plain), figures(joined)
    print("\n" + json.dumps({
        "plain_seconds": plain, "site_seconds": whole, "in_causeway_seconds": figures(in_causeway),
        "overhead_median": whole["median"] / plain["median"],
        "overhead_mean": whole["mean"] / plain["mean"],
        "values": type(site._torch_values).__name__, "join_seconds": join_s,
        "device_bytes": taken, "summary": site.summary(), "torch": torch.__version__}, indent=1))


if __name__ == "__main__":
    main()
