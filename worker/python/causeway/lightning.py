"""A Lightning Trainer as a site of a Causeway run.

>>> causeway = CausewayCallback("hub:7070", id="paris")
>>> lightning.Trainer(callbacks=[causeway], max_steps=-1).fit(module, data)
>>> with causeway.site.published():
...     trainer.validate(module, data)
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Dict, List, Optional, Set

import torch
from lightning.pytorch.callbacks import Callback

import causeway.torch as cw
from causeway import _arguments as check
from causeway._unfollowed import say_if_unused
from causeway.torch._optimizers import is_inside

log = logging.getLogger("causeway")


class CausewayCallback(Callback):
    """Joins when training begins, follows every optimizer step, and stops training with the run.

    A step of the site is one of each optimizer, with manual optimization, too, and ends with its
    batch: an optimizer that steps twice meanwhile raises InvalidArgument.

    The site's state is in Lightning's checkpoints, and training that resumes from one continues
    from there.

    Args:
        coordinator, id, arguments: as of `causeway.torch.join`. Names are those of the module;
            `rename` takes away what it adds.

    Attributes:
        site: the `causeway.torch.Site`, from the beginning of training on.
    """

    def __init__(self, coordinator: str, *, id: Optional[str] = None, **arguments: Any) -> None:
        self._join = functools.partial(cw.join, coordinator, id=id, **arguments)
        self._unused = say_if_unused(self, check.site_id(coordinator, id)[1],
                                     "give its callback to the Trainer (callbacks=[...]), and fit")
        self._loaded: Optional[Dict[str, Any]] = None
        self._stepped: Set[torch.optim.Optimizer] = set()  # Since the last step of the site.
        # Of those in whose step Lightning is, the trainer's global_step.
        self._begun: Dict[torch.optim.Optimizer, int] = {}
        self._hooks: List[Any] = []
        self._is_saved = True
        self.site: Optional[cw.Site] = None

    def __getstate__(self) -> Dict[str, Any]:
        self._unused.detach()  # Processes that ddp_spawn starts have copies, which train.
        return {**vars(self), "_unused": None}

    def on_train_start(self, trainer, pl_module) -> None:
        if self._unused is not None:
            self._unused.detach()
        self._remove_hooks()
        self.site = self._join(pl_module, **({"state": self._loaded} if self._loaded else {}))
        self.site.look_at(trainer.optimizers)
        self._loaded = None
        self._stepped.clear()
        self._begun.clear()
        self.site.open()
        # Lightning does not tell of steps that a module makes without it.
        self._hooks = [optimizer.register_step_post_hook(
            lambda one, _arguments, _named: self._step_ended(one))
            for optimizer in trainer.optimizers]
        trainer.should_stop = trainer.should_stop or self.site.should_stop

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if not self._is_saved:
            # The checkpoint was written after the last batch.
            self._is_saved = True
            self.site.saved()
        if not self.site._closed and self.site.should_stop:
            log.warning("site %s: the run wants no more steps of it, and Lightning trains on (min_steps, min_epochs): "
                        "what it trains from here on goes to nobody", self.site._id)
            self.on_train_end(trainer, pl_module)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        # Steps that a scaler skips count, too. A closure may be called several times in one.
        if self._begun.get(optimizer) != trainer.global_step:
            self._begun[optimizer] = trainer.global_step
            self._count(optimizer)

    def _step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        if not is_inside(optimizer) and self._begun.pop(optimizer, None) is None:
            self._count(optimizer)

    def _count(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer in self._stepped:
            raise check.invalid(
                f"{type(optimizer).__name__} steps twice for one step of the site, which is one of "
                "each optimizer and ends with its batch. Where training has other steps, take no "
                "callback: causeway.torch.join without optimizer, and site.step() where one ends")
        self._stepped.add(optimizer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        # Batches that only accumulate gradients do not count.
        if len(self._stepped) < len(trainer.optimizers):
            return
        self._stepped.clear()
        if self.site._closed or not self.site.step():
            trainer.should_stop = True

    def _remove_hooks(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def on_train_end(self, trainer, pl_module) -> None:
        self._remove_hooks()
        self.site.close()

    def on_exception(self, trainer, pl_module, exception) -> None:
        self._remove_hooks()
        if self.site is not None:
            self.site.close(exception)

    def state_dict(self) -> Dict[str, Any]:
        self._is_saved = False
        state = self.site.state_dict() if self.site is not None else {}
        # Lightning copies what it loads, which it cannot do with a storage without a warning.
        return {name: torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
                for name, storage in state.items()}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._loaded = state_dict or None
