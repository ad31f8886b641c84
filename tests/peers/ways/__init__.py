"""The rows of the tables: a way of training, one of its variants, and how it is set.

Each module here is a way. In the peers' environment, train(task) does a site's share and returns the
final values; in the harness, which has no packages, `server(cell)` is the command in the middle and
`command(cell, site)` that of a site, where they are not the usual ones. CANNOT says which faults it
cannot be put to, and why.
"""

import dataclasses
import importlib


@dataclasses.dataclass(frozen=True)
class Row:
    way: str
    variant: str
    label: str
    settings: str  # For the page.
    packages: tuple = ()
    no_faults: str = ""  # Why this row is not put to faults.

    @property
    def module(self):
        return importlib.import_module(f"ways.{self.way}")


ROWS = {
    "causeway-int4": Row("causeway", "int4", "Causeway int4", "H=32"),
    "causeway-lm2": Row("causeway", "lm2", "Causeway lm2", "H=16", no_faults="as int4"),
    "torchft": Row("torchft", "", "torchft", "Streaming DiLoCo, H=32, bf16 (should_quantize needs GPUs); "
                   "1 of 5 killed servers: waits 14 s, +0.000",
                   ("torchft-nightly", "torch")),
    "hivemind": Row("hivemind", "", "hivemind", "local updates, fp16, H=32, matchmaking 2 s", ("hivemind", "torch")),
    "flower": Row("flower", "", "Flower", "FedAvg, fp32, H=64 (messages start processes)", ("flwr", "torch")),
    "local-sgd": Row("local_sgd", "", "LocalSGD", "accelerate, fp32, H=32", ("accelerate", "torch"),
                     no_faults="as DDP"),
    "ddp-bf16": Row("ddp", "bf16", "DDP bf16", "torchrun", ("torch",)),
    "ddp-powersgd": Row("ddp", "powersgd", "DDP PowerSGD",
                        "rank 4, bf16, one bucket (else hangs), first 10 steps uncompressed",
                        ("torch",), no_faults="as bf16"),
    "alone": Row("alone", "", "alone", "", ("torch",), no_faults="hears of nobody"),
}
