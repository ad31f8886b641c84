"""Tensors of the CPU as those of an emulated CUDA device: the library of tests/site, whose kernels run
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
# Addresses of tensors that are on no device.
elsewhere = set()


def library():
    found = _library.load()
    found.causeway_emulate.argtypes = [c_int64, c_int]
    for name in ("waits_of_thread", "kernels", "allocations"):
        getattr(found, f"causeway_emulated_{name}").restype = c_int64
    return found


def use(memory=MEMORY, driver=0):
    """One device of so many bytes; `driver`: cudaError_t of every call."""
    gc.collect()  # Sites of before have their memory of the former one.
    library().causeway_emulate(memory, driver)
    device.place_of = lambda tensor: None if tensor.data_ptr() in elsewhere else 0
    device.stream_of = lambda _device: 0


def waits():
    """Calls of this thread that have waited for the device."""
    return library().causeway_emulated_waits_of_thread() if chosen else 0


if chosen:
    use()
