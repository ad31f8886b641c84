"""Which GPU, driver, tools and libraries there are."""

import json
import os
import platform
import re
import shutil
from pathlib import Path

from parts import Skip

_FIELDS = ("name", "memory.total", "driver_version", "compute_cap")
# Libraries that the worker opens at run time, and that PyTorch's packages bring along. The last two
# are for attention by cuDNN.
_LIBRARIES = ("libcublasLt.so.13", "libnccl.so.2", "libcudnn.so.9", "libcudart.so.13")
# Where tools lie that are not in PATH.
TOOL_FOLDERS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer",
                 "/opt/nvidia/bin", "/usr/lib/wsl/lib", "/usr/bin")
# Where a container's driver puts libcuda.so.1, if ld.so does not know of it.
DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")

# PATH's python3 is the one that has PyTorch, if there is one. What is installed is read, not
# imported: that takes a minute where files are slow.
_LOOK_AT_PYTHON = """
import importlib.metadata, json, sys
try:
    torch = importlib.metadata.version("torch")
except importlib.metadata.PackageNotFoundError:
    torch = None
print(json.dumps({"path": sys.path, "torch": torch}))
"""


def find_libraries(folders):
    """Folder of each run-time library that one of the folders has, by name."""
    found = {}
    for folder in folders:
        for name in _LIBRARIES:
            if name not in found and any(Path(folder).glob(f"{name}*")):
                found[name] = str(folder)
    return found


def library_folders(python_path):
    """Where toolkits and the packages of a Python put libraries, the nearest first."""
    folders = sorted(Path("/usr/local").glob("cuda*/lib64"))
    folders += sorted(Path("/usr/local").glob("cuda*/targets/x86_64-linux/lib"))
    folders += [Path("/usr/lib/x86_64-linux-gnu")]
    for entry in python_path:
        folders += sorted(Path(entry or ".").glob("nvidia/*/lib"))
    return folders


def parse_gpus(text):
    """Of nvidia-smi --query-gpu=... --format=csv,noheader."""
    gpus = []
    for line in text.strip().splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_FIELDS):
            gpus.append(dict(zip(_FIELDS, values)))
    return gpus


def _read_ahead(libraries):
    """cuBLASLt has half a gigabyte, which should not count in the first test that opens it."""
    for name, folder in libraries.items():
        for path in Path(folder).glob(f"{name}*"):
            with open(path, "rb") as file:
                while file.read(1 << 24):
                    pass


def find_tool(context, name):
    """Path of a program in PATH or where such programs lie; None where there is none."""
    path = context.variables.get("PATH", "")
    return shutil.which(name, path=os.pathsep.join([path, *TOOL_FOLDERS]))


def _version(context, program, pattern):
    path = find_tool(context, program)
    if path is None:
        return None
    done = context.run("environment", path, "--version", timeout_s=20)
    match = re.search(pattern, done.output)
    return {"path": path, "version": match[1] if match else "unknown"}


def _look_at_python(context):
    done = context.run("environment", "python3", "-c", _LOOK_AT_PYTHON, timeout_s=30)
    if done.status != 0:
        return {"path": [], "torch": None}
    return json.loads(done.output.strip().splitlines()[-1])


def environment(context):
    data = context.data
    data.update(machine=platform.platform(), processor_cores=len(os.sched_getaffinity(0)),
                python=platform.python_version())
    manifest = json.loads((context.pack / "manifest.json").read_text())
    data["pack"] = {key: manifest[key] for key in ("commit", "changed", "architectures")}
    data["nvcc"] = _version(context, "nvcc", r"release ([\d.]+)")
    data["compute_sanitizer"] = _version(context, "compute-sanitizer", r"Version ([\d.]+)")
    python = _look_at_python(context)
    data["torch"] = python["torch"]
    context.tools = data
    data["libraries"] = find_libraries(library_folders(python["path"]))
    paths = [str(context.pack / "lib"), *dict.fromkeys(data["libraries"].values()),
             context.variables.get("LD_LIBRARY_PATH", ""),
             *(folder for folder in DRIVER_FOLDERS if Path(folder).is_dir())]
    context.program_variables = {"LD_LIBRARY_PATH": ":".join(path for path in paths if path)}

    loaded = context.run("environment", context.program("causeway-worker"), "--help", timeout_s=20,
                         variables=context.program_variables)
    if loaded.status != 0 or "causeway-worker trains" not in loaded.output:
        context.no_gpu = "the packed programs do not start here"
        raise RuntimeError(f"the packed causeway-worker does not start: {loaded.last_lines()}")
    smi = find_tool(context, "nvidia-smi")
    if smi is None:
        context.no_gpu = "there is no nvidia-smi"
        raise Skip(f"no GPU: {context.no_gpu}; the packed programs start")
    asked = context.run("environment", smi, f"--query-gpu={','.join(_FIELDS)}",
                        "--format=csv,noheader", timeout_s=30)
    data["gpus"] = parse_gpus(asked.output)
    _read_ahead(data["libraries"])
    if asked.status != 0 or not data["gpus"]:
        context.no_gpu = f"nvidia-smi says: {asked.last_lines(1)}"
        raise Skip(f"no GPU: {context.no_gpu}; the packed programs start")
    context.gpu = data["gpus"][0]
    return (f"{len(data['gpus'])} x {context.gpu['name']}, driver {context.gpu['driver_version']}, "
            f"torch {data['torch']}")
