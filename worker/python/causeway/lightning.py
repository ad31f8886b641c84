"""A Lightning Trainer as a site of a Causeway run.

>>> causeway = CausewayCallback("hub:7070", id="paris")
>>> lightning.Trainer(callbacks=[causeway], max_steps=-1).fit(module, data)
>>> with causeway.site.published():
...     trainer.validate(module, data)
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
from lightning.pytorch.callbacks import Callback

import causeway.torch as cw


class CausewayCallback(Callback):
    """Joins when training begins, follows every optimizer step, and stops training with the run.

    The site's state is in Lightning's checkpoints, and training that resumes from one continues
    from there.

    Args:
        coordinator, id, arguments: as of `causeway.torch.join`. Names are those of the module;
            `rename` takes away what it adds.

    Attributes:
        site: the `causeway.torch.Site`, from the beginning of training on.
    """

    def __init__(self, coordinator: str, *, id: str, **arguments: Any) -> None:
        self._join = lambda module, **more: cw.join(coordinator, module, id=id, **arguments, **more)
        self._loaded: Optional[Dict[str, Any]] = None
        self._steps = 0
        self._is_saved = True
        self.site: Optional[cw.Site] = None

    def on_train_start(self, trainer, pl_module) -> None:
        self.site = self._join(pl_module, state=self._loaded)
        self.site.look_at(trainer.optimizers)
        self._loaded = None
        self._steps = trainer.global_step
        self.site.open()
        trainer.should_stop = trainer.should_stop or self.site.should_stop

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if not self._is_saved:
            # The checkpoint was written after the last batch.
            self._is_saved = True
            self.site.saved()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        # Batches that only accumulate gradients do not count; steps that a scaler skips do.
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if not self.site.step():
            trainer.should_stop = True

    def on_train_end(self, trainer, pl_module) -> None:
        self.site.close()

    def on_exception(self, trainer, pl_module, exception) -> None:
        if self.site is not None:
            self.site.close(exception)

    def state_dict(self) -> Dict[str, Any]:
        self._is_saved = False
        state = self.site.state_dict() if self.site is not None else {}
        # Lightning copies what it loads, which it cannot do with a storage without a warning.
        return {name: torch.empty(0, dtype=torch.uint8).set_(storage)
                for name, storage in state.items()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._loaded = state_dict or None
