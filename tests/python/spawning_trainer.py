#!/usr/bin/env python3
"""A site of two processes that Lightning spawns. usage: spawning_trainer.py COORDINATOR FOLDER"""

import sys

import lightning
import torch

from causeway.lightning import CausewayCallback
from models import loss_of, small_model, tokens


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = small_model()

    def training_step(self, _batch, index):
        return loss_of(self.model, index)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def plain(name):
    return name[len("model."):]


if __name__ == "__main__":
    torch.set_num_threads(1)
    data = torch.utils.data.DataLoader(torch.stack([tokens(i, (6,)) for i in range(64)]), batch_size=2)
    trainer = lightning.Trainer(
        callbacks=[CausewayCallback(sys.argv[1], id="s", rename=plain)], max_epochs=-1, accelerator="cpu", devices=2,
        strategy="ddp_spawn", logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=sys.argv[2])
    trainer.fit(Module(), data)
