"""A PyTorch model and its optimizer as a site of a Causeway run.

>>> import causeway.torch as cw
>>> site = cw.join("hub:7070", model, optimizer, id="paris", tls="certificates/worker-paris")
>>> with site:
...     for batch in loader:
...         loss(model, batch).backward()
...         optimizer.step()                   # followed by site.step() through a hook
...         optimizer.zero_grad()
...         if site.should_stop:
...             break
>>> with site.published():
...     evaluate(model)

What trains is synchronized: parameters that require gradients, by their fully qualified names,
each storage once. Frozen parameters and buffers are not, and an optimizer's state never is. Merged
values are written in place, on the same storage, so that torch.compile and CUDA graphs go on.
"""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Union

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from causeway import _arguments as check
from causeway._site import BaseSite
from causeway.torch._device import WAYS, DeviceValues, devices_for
from causeway.torch._group import Group, Solo
from causeway.torch._optimizers import is_inside
from causeway.torch._parameters import Masters, Trained, check_model, invalid, is_dtensor, local
from causeway.torch._parameters import part_of, trained_tensors, version_of
from causeway.torch._values import TorchValues
from causeway.torch._watch import Watch

__all__ = ["Site", "join", "trained_tensors"]

Optimizers = Union[None, torch.optim.Optimizer, Sequence[torch.optim.Optimizer]]
log = logging.getLogger("causeway")


class Site(BaseSite):
    """A site of a PyTorch model. `join` makes one and says what its arguments mean.

    `state_dict` and `load_state_dict` make it a Stateful of torch.distributed.checkpoint; in a site
    of several processes the first one has the state, the others have none.
    """

    def __init__(self, coordinator: str,
                 model: Union[nn.Module, Mapping[str, torch.Tensor]],
                 optimizer: Optimizers = None, *, id: Optional[str] = None,
                 tls: Union[None, str, "os.PathLike[str]", Dict[str, Any]] = None,
                 data_slot: bool = False, tokens_per_step: int = 1,
                 scaler: Optional[Any] = None, group: Optional[dist.ProcessGroup] = None,
                 buffers: Union[bool, Iterable[str]] = False,
                 rename: Optional[Callable[[str], str]] = None, masters: Masters = None,
                 values: str = "device", state: Optional[Dict[str, Any]] = None,
                 **options: Any) -> None:
        check_model(model, buffers, rename, masters)
        _check_arguments(optimizer, scaler, group, values)
        check.check_options(options)
        self._scaler = scaler
        if scaler is not None and not scaler.is_enabled():
            self._scaler = None
        buffers = buffers if isinstance(buffers, bool) else list(buffers)

        def look_up() -> List[Trained]:
            return trained_tensors(model, buffers, rename, masters)

        trained = look_up()
        self._watch = Watch(model, look_up, trained, _listed(optimizer), masters is not None)
        self._optimizers = _plain_optimizers(optimizer)
        team = _team(model, [entry.tensor for entry in trained], group)
        try:
            parts = team.all_parts([part_of(entry, team.rank) for entry in trained])
            self._torch_values = _values(check.site_id(coordinator, id)[1], values, trained, team, parts, self._watch)
            devices = {local(entry.tensor).device: None for entry in trained}
            options.setdefault("device", _describe_devices(list(devices), team.size))
            options.setdefault("software", f"causeway for Python, torch {torch.__version__}")
            super().__init__(coordinator, self._torch_values, id=id, tls=tls, data_slot=data_slot,
                             tokens_per_step=tokens_per_step, state=state, team=team, **options)
        except BaseException:
            team.leave()
            raise
        self._stepped: Set[int] = set()  # Optimizers, since the last step of the site.
        self._steps_itself = self._scaler is not None or bool(self._optimizers)
        self._warned = False
        self._hooks = _Hooks(self, self._optimizers)
        self._seen = trained[self._watch.last].tensor
        self._version = 0

    def open(self) -> None:
        self._torch_values.check()
        super().open()

    open.__doc__ = BaseSite.open.__doc__

    def _join(self, *arguments: Any) -> Any:
        self._place()
        return super()._join(*arguments)

    def _follow_leader(self, start: bytes) -> None:
        self._place()
        super()._follow_leader(start)

    def _place(self) -> None:
        if isinstance(self._torch_values, DeviceValues):
            self._options["on_device"] = self._torch_values.on_device()

    def look_at(self, optimizer: Optimizers) -> None:
        """Names optimizers that train the model but do not make the site's steps, before it joins.

        Raises:
            InvalidArgument: one of them trains other tensors than the model's.
        """
        _check_optimizers(optimizer)
        self._watch.look_at(_listed(optimizer))

    # --- Hooks ------------------------------------------------------------------------------------

    def _on_open(self) -> None:
        self._watch.joined()
        self._hooks.keep(self)
        begins = weakref.WeakMethod(self._watch.step_begins)  # A site without optimizers goes when nobody has it.
        self._hooks.add(register_optimizer_step_pre_hook(
            lambda optimizer, _arguments, _named:
            None if torch.compiler.is_compiling() or begins() is None else begins()(optimizer)))
        if self._optimizers:
            self._hooks.add(register_optimizer_step_post_hook(
                lambda optimizer, _arguments, _named: self._watch.other_step(optimizer)))
        if self._scaler is None:
            return
        update = self._scaler.update

        def update_and_step(*arguments: Any, **named: Any) -> None:
            update(*arguments, **named)
            self._stepped.clear()
            super(Site, self).step()

        # A scaler that found infinities skips optimizer.step, and its hooks, but not update.
        self._scaler.update = update_and_step

    def _optimizer_stepped(self, index: int) -> None:
        if self._info is None:
            if self._warned:
                return
            self._warned = True  # The hooks stay: it may join yet.
            log.warning("site %s has not joined its run, and its optimizer steps: the model trains "
                        "alone. Train in the site's with block, or call open() first", self._id)
            return
        if self._seen.is_cuda and torch.cuda.is_current_stream_capturing():
            raise invalid("the optimizer's step is captured in a CUDA graph, whose replays make no step of this "
                          "site. Leave optimizer out of join(), and call site.step() after each replay")
        if index in self._stepped:
            uneven = self._describe_uneven(index)
            self._stepped.clear()  # Whoever goes on, does so with the next step of all.
            raise invalid(uneven)
        self._stepped.add(index)
        if self._scaler is None and len(self._stepped) == len(self._optimizers):
            self._stepped.clear()
            super().step()

    def _describe_uneven(self, index: int) -> str:
        twice = f"optimizer {index} ({type(self._optimizers[index]).__name__}) has stepped twice"
        if self._scaler is not None:
            return (f"{twice} without scaler.update(), which is a step of this site: call it after "
                    "each step, or leave scaler out of join()")
        other = next(i for i in range(len(self._optimizers)) if i not in self._stepped)
        return (f"{twice}, and optimizer {other} ({type(self._optimizers[other]).__name__}) not "
                "since then: a step of this site is one of each optimizer. Where a GradScaler skips steps, hand it "
                "over (scaler=); else leave out of join() what does not step, or all of them, and call site.step() "
                "where a step ends. If an exception came between the two, this step does not count, and the next one of "
                "each does")

    def _changes(self) -> int:
        before, self._version = self._version, version_of(self._seen)
        return max(0, self._version - before)

    def _reset_unfollowed(self) -> None:
        super()._reset_unfollowed()
        self._watch.rests()

    def _who_steps(self) -> str:
        if not self._steps_itself:
            return super()._who_steps()
        follows = "calls of scaler.update" if self._scaler is not None else "the optimizer's step hook"
        return (f"It follows {follows}, which another step method, a wrapper or a CUDA graph passes over: leave "
                "optimizer and scaler out of join(), and call site.step() after each step")

    def _on_close(self) -> None:
        self._hooks.remove()
        if self._scaler is not None and "update" in vars(self._scaler):
            del self._scaler.update

    def step(self, tokens: Optional[int] = None, draws: Optional[int] = None) -> bool:
        """As BaseSite's, for a site that was given neither an optimizer nor a scaler: with them, a
        step follows by itself, and tokens are counted by `add`.

        Raises:
            InvalidArgument: it was given one, so that this step would count twice.
        """
        if self._steps_itself and self._info is not None and not (self._closed or self._replaced):
            raise invalid("site.step() would count this step twice: the site follows its "
                          f"{'scaler' if self._scaler else 'optimizer'}, which join() was given, "
                          "by itself. Leave the call out (site.add(tokens) counts tokens), or "
                          f"leave {'scaler and ' if self._scaler else ''}optimizer out of join()")
        return super().step(tokens, draws)

    def close(self, error: Optional[BaseException] = None) -> None:
        super().close(error)
        self._torch_values.settle()

    # --- State ------------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """What a bit-exact continuation needs beside the model's and the optimizer's state.

        Take all three after the same step. About 4 bytes per parameter, 8 with error feedback, and
        4 for each parameter of bfloat16 or float16. torch.save, torch.load (weights_only, too) and
        torch.distributed.checkpoint take it. Call `saved` when it is safe. Of several processes the
        first one's is enough: it has what all of them own, in memory twice while it is made.
        """
        state = super().state_dict()
        if not state and self._info is None:
            state = {"state": self._pack(np.zeros(0, np.uint8))}  # To be loaded into.
        return state

    def _pack(self, state: np.ndarray) -> Any:
        # Checkpoints store a storage as it is, and do not want to know its size to load it.
        return torch.from_numpy(state).untyped_storage()

    def _unpack(self, state: Any) -> np.ndarray:
        if isinstance(state, torch.Tensor):
            return state.cpu().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.load makes a TypedStorage, and warns of it.
            storage = state.untyped() if hasattr(state, "untyped") else state
        # On the host, whatever torch's default device is, and wherever torch.load(map_location=) put it.
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy()


class _Hooks:
    """Tells a site of its optimizers' steps. Keeps no site that has not joined: nobody else having
    it, it is to be thrown away, and to say so."""

    def __init__(self, site: Site, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._site: Callable[[], Optional[Site]] = weakref.ref(site)
        self._handles = [optimizer.register_step_post_hook(
            lambda one, _arguments, _named, index=index: self._stepped(one, index))
            for index, optimizer in enumerate(optimizers)]

    def keep(self, site: Site) -> None:
        self._site = lambda: site

    def add(self, handle: Any) -> None:
        """To be removed with the others."""
        self._handles.append(handle)

    def remove(self) -> None:
        self._site = lambda: None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _stepped(self, optimizer: torch.optim.Optimizer, index: int) -> None:
        site = self._site()
        if site is not None and not is_inside(optimizer):  # Else the hook stays: none may go while an optimizer goes through them.
            site._optimizer_stepped(index)


def join(coordinator: str, model: Union[nn.Module, Mapping[str, torch.Tensor]],
         optimizer: Optimizers = None, *, id: Optional[str] = None, **arguments: Any) -> Site:
    """A site of `model`, which connects when its `with` block begins.

    Args:
        coordinator: HOST:PORT; or the line of an invitation (causewayctl invite), "@FILE" with one,
            or "RUN" or "RUN/NAME" once this machine has boarded by one.
        model: a module (compiled, DistributedDataParallel or fully_shard, as you like), or names
            and tensors. Its parameters in float32, bfloat16 or float16, on CPUs or CUDA devices.
        optimizer: one or several: a step of the site is one step of each of them. None: call
            `site.step()` yourself after every optimizer step.
        id: this site's name, unique in the run; an invitation has it.
        tls: a folder with ca.pem, and cert.pem and key.pem or token, or a dict of paths with keys
            ca, cert, key, token and server_name. None: no TLS.
        data_slot: True if the sites draw parts of data that they share; see `Site.data_slot`.
        tokens_per_step: what a step of this process counts if `site.add(tokens)` is not called.
        scaler: the GradScaler, if there is one: a step is then `scaler.update()`, so that steps
            that it skips count, too.
        group: processes of this site; default: all, if torch.distributed is initialized. The first
            one joins, the others follow it. Each encodes and merges a share of every fragment, of
            what its model has as far as that goes. When they end, the others stay until the first
            one needs them no more (`state_dict`, `published`), up to a minute.
        buffers: True, or names, to synchronize buffers, too.
        rename: from the model's names to the run's, if they differ.
        masters: if the optimizer trains fp32 masters of bfloat16 or float16 parameters, these, by
            the model's names, or a function from a parameter to its master or None. Masters are
            then what is synchronized, and parameters their rounded copies. {}: there are none, and
            an optimizer that looks as if it had some is not refused.
        values: where published values are, and what is kept beside the parameters, if these are on
            CUDA devices: "device", in their memory, or "pinned", published ones in page-locked memory
            of the host, which a merge then waits for on the device. "host": on the host, where
            everything is done for other parameters, too.
        state: what `site.state_dict()` gave, to continue from. Restore model and optimizer before.
        options: identity, threads, connections, max_upload_mbit, max_download_mbit,
            connect_timeout_s, drain_timeout_s, congestion_control, metrics, output, tensorboard and
            insecure, as in causeway_site.h.

    Memory: on the host 8 bytes per parameter, and what is in flight, divided over the processes of
    the site; with DDP in each a fragment more while it is merged. Or, on devices, each has for its
    share 4 bytes per parameter, 4 more if any has two bytes, 4 more with error feedback, and two
    fragments.

    Raises:
        InvalidArgument: an argument or a parameter cannot be used. Joining itself, when the block
            begins, raises what `Site.open` says.
    """
    return Site(coordinator, model, optimizer, id=id, **arguments)


def _check_arguments(optimizer: Any, scaler: Any, group: Any, values: Any) -> None:
    _check_optimizers(optimizer)
    if scaler is not None and not (hasattr(scaler, "is_enabled") and hasattr(scaler, "update")):
        raise check.wrong("scaler", "a GradScaler", scaler)
    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise check.wrong("group", "a torch.distributed.ProcessGroup", group)
    if not isinstance(values, str) or values not in WAYS:
        raise check.wrong("values", f"one of {', '.join(map(repr, WAYS))}", values)


def _check_optimizers(optimizer: Any) -> None:
    several = isinstance(optimizer, (list, tuple))
    for at, entry in enumerate(_listed(optimizer)):
        if not callable(getattr(entry, "step", None)):
            raise check.wrong(f"optimizer[{at}]" if several else "optimizer",
                              "a torch.optim.Optimizer" if several else
                              "a torch.optim.Optimizer, a list of them, or None", entry)
        if any(entry is other for other in _listed(optimizer)[:at]):
            raise check.wrong(f"optimizer[{at}]", "another one than those before it", entry)
    if several and not optimizer:
        raise check.wrong("optimizer", "at least one, or None: site.step() then follows each step",
                          optimizer)


def _listed(optimizer: Optimizers) -> List[Any]:
    return [] if optimizer is None else \
        list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]


def _plain_optimizers(optimizer: Optimizers) -> List[torch.optim.Optimizer]:
    """Without what accelerate and Lightning wrap around them."""
    plain = []
    for entry in _listed(optimizer):
        inner = getattr(entry, "optimizer", entry)
        if not isinstance(inner, torch.optim.Optimizer):
            raise invalid(f"optimizer is a {type(entry).__name__} without hooks of "
                          "torch.optim.Optimizer: leave it out, and call site.step() after each "
                          "of its steps")
        plain.append(inner)
    return plain


def _team(model: Any, tensors: Sequence[torch.Tensor], group: Optional[dist.ProcessGroup]) -> Solo:
    if not dist.is_available() or not dist.is_initialized():
        if any(is_dtensor(tensor) for tensor in tensors):
            raise invalid("the model is sharded, but torch.distributed is not initialized")
        return Solo()
    for layer in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(layer, nn.parallel.DistributedDataParallel):
            replicas = dist.get_process_group_ranks(layer.process_group)
            ours = dist.get_process_group_ranks(group or dist.group.WORLD)
            if sorted(replicas) != sorted(ours):
                raise invalid(f"the model is replicated in the processes {replicas}, and the site's "
                              f"group is {ours}: what is merged in some of them alone parts the "
                              "replicas. Leave group out, or give the model's")
    return Group(group) if dist.get_world_size(group) > 1 else Solo()


def _values(site_id: str, way: str, trained: Sequence[Any], team: Solo, parts: Sequence[Sequence[Any]],
            watch: Watch) -> TorchValues:
    if way != "host":
        places, reason = devices_for(trained, team, parts)
        if places:
            return DeviceValues(trained, team, parts, watch, places=places, pinned=way == "pinned")
        if reason:
            log.warning("site %s: values cross in the host's memory, since %s. On an H200 that took "
                        "the training thread 4.5 ns per parameter sent and merged", site_id, reason)
    return TorchValues(trained, team, parts, watch)


def _describe_devices(devices: Sequence[torch.device], processes: int) -> str:
    kinds = [torch.cuda.get_device_name(device) if device.type == "cuda" else device.type for device in devices]
    names = ", ".join(kind if kinds.count(kind) == 1 else f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return names if processes == 1 else f"{processes} processes: {names}"
