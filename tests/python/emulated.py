"""Tensors of the CPU as those of emulated CUDA devices: the library of tests/site, whose kernels run
when they are issued, takes their addresses."""

import gc
import os
import pathlib
from ctypes import c_int, c_int64

import causeway.torch._device as device
from causeway import _library

NAME = "libcauseway_site_emulated.so"
MEMORY = 1 << 28
chosen = pathlib.Path(os.environ.get("CAUSEWAY_SITE_LIBRARY", "")).name == NAME
# The numbers of the devices of tensors, by address; None: none. All others are on the first one.
places = {}


def library():
    found = _library.load()
    found.causeway_emulate.argtypes = [c_int64, c_int]
    for name in ("waits_of_thread", "kernels", "allocations"):
        getattr(found, f"causeway_emulated_{name}").restype = c_int64
    return found


def use(memory=MEMORY, driver=0):
    """Devices of so many bytes each; `driver`: cudaError_t of every call."""
    gc.collect()  # Sites of before have their memory of the former one.
    library().causeway_emulate(memory, driver)
    device.place_of = lambda tensor: places.get(tensor.data_ptr(), 0)
    device.stream_of = lambda _device: 0


def spread(model, devices):
    """The model, whose parameters are on so many devices in turn."""
    places.clear()
    places.update({parameter.data_ptr(): index % devices for index, parameter in enumerate(model.parameters())})
    return model


def waits():
    """Calls of this thread that have waited for the device."""
    return library().causeway_emulated_waits_of_thread() if chosen else 0


if chosen:
    use()
