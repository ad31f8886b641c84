"""The records of a run directory (docs/formats.md), read without the programs that write them."""

import contextlib
import importlib
import pathlib
import sqlite3
import subprocess
import sys
import tempfile

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
NAMES = {"run": "RunIdentity"}  # Others are the kind with a capital.


def make_messages():
    with tempfile.TemporaryDirectory(prefix="causeway_records_") as folder:
        subprocess.run(["protoc", f"-I{PROTO}", f"--python_out={folder}",
                        *(f"causeway/v1/{name}.proto"
                          for name in ("config", "session", "exchange", "record"))], check=True)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("causeway.v1.record_pb2")
        finally:
            sys.path.remove(folder)


def records(folder, kind):
    """Those of a kind, in order of their keys. Nobody serves the folder."""
    message = getattr(make_messages(), NAMES.get(kind, kind.capitalize()))
    address = f"file:{folder / 'run.db'}?mode=ro"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
        return [message.FromString(value) for value, in database.execute(
            "SELECT value FROM records WHERE key = ? OR key GLOB ? || '/*' ORDER BY key",
            (kind, kind))]
