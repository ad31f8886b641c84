"""causeway COMMAND [OPTION...]: each command is `python3 -m causeway.COMMAND` as well."""

from __future__ import annotations

import runpy
import sys

import causeway

COMMANDS = {
    "demo": "trains a small model at two sites on this machine",
    "fleet": "starts and keeps sites on machines of any cloud, by one file",
    "generate": "writes text with a trained model",
    "huggingface": "brings models from Hugging Face's folders, and back",
    "plan": "says which settings suit given links",
    "score": "measures a model by the tasks of lm-evaluation-harness",
    "tokenize": "makes token shards of text",
}


def main() -> int:
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command == "--version":
        print(f"causeway {causeway.__version__}")
        return 0
    if command in ("--help", "-h"):
        print("usage: causeway COMMAND [--help]\n")
        for name, what in COMMANDS.items():
            print(f"  {name:<12} {what}")
        return 0
    if command not in COMMANDS:
        print(f"causeway: there is no command '{command}'; there are {', '.join(COMMANDS)}",
              file=sys.stderr)
        return 2
    del sys.argv[1]
    runpy.run_module(f"causeway.{command}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
