"""python3 -m causeway.huggingface: checkpoints of Hugging Face into a run and out of it.

  python3 -m causeway.huggingface import --from=Llama-3.2-1B --out=start
  causeway-coordinator serve --initial=start --config=FILE --run_dir=FOLDER

  causeway-worker export --checkpoint=out/a/checkpoint --out=model
  python3 -m causeway.huggingface export --from=model --out=exported --tokenizer=shards

Exit status: 0; 2 for bad input.
"""

from __future__ import annotations

import argparse
import sys
from typing import List

from causeway.errors import InvalidArgument
from causeway.huggingface import _shape, export_folder, import_folder


def parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python3 -m causeway.huggingface", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    take = commands.add_parser("import", help="a checkpoint of Hugging Face's becomes one that a run starts from",
                               allow_abbrev=False)
    give = commands.add_parser("export", help="a model of Causeway's becomes one that transformers loads",
                               allow_abbrev=False)
    for command, source in ((take, "config.json and safetensors"), (give, "what causeway-worker or causewayctl exported")):
        command.add_argument("--from", dest="source", required=True, metavar="FOLDER", help=source)
        command.add_argument("--out", required=True, metavar="FOLDER")
        command.add_argument("--replace", action="store_true", help="takes the place of the model in --out")
    take.add_argument("--sequence_length", type=int, default=0, metavar="N",
                      help="of the training windows; 0: what the model takes, at most 1024")
    give.add_argument("--tokenizer", default="", metavar="FILE", help="a tokenizer's file or folder, to be copied")
    give.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="of the weights")
    give.add_argument("--max_file_gb", type=float, default=5, help="above that the weights go into several files")
    give.add_argument("--max_positions", type=int, default=0, metavar="N",
                      help="max_position_embeddings of config.json; 0: the training windows' length")
    return parser.parse_args(arguments)


def main(arguments: List[str]) -> int:
    options = parse(arguments)
    try:
        if options.command == "import":
            shape = import_folder(options.source, options.out, options.sequence_length, options.replace)
            print(_shape.shape_text(shape), end="")
            print(f"{options.source} is in {options.out}; a run starts from it with\n  causeway-coordinator serve "
                  f"--initial={options.out} --config=FILE --run_dir=FOLDER", file=sys.stderr)
        else:
            architecture = export_folder(options.source, options.out, options.tokenizer, options.dtype,
                                         options.max_file_gb, options.max_positions, options.replace)
            print(f"{architecture} of {options.source} is in {options.out}")
    except (InvalidArgument, OSError) as error:
        message = error.message if isinstance(error, InvalidArgument) else error
        print(f"causeway.huggingface: {message}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
