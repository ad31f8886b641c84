"""python3 -m causeway.score: what an exported model is worth on downstream tasks, by lm-evaluation-harness.

  python3 -m causeway.score --model=exported --tasks=hellaswag,mine.jsonl

A task is one that lm-evaluation-harness knows (`lm_eval ls tasks`), or a file with a line of JSON per example:

  {"context": "The capital of France is", "completions": [" Paris.", " Rome."], "label": 0}

`acc` takes the completion of the highest probability, `acc_norm` that of the highest per byte. Exit status: 0; 2 for
bad input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any, Dict, List

from causeway.errors import InvalidArgument
from causeway.tokenize import missing, refuse_pointer, refuse_pointers


def _task(path: str) -> Dict[str, Any]:
    """A file of examples as a task of the harness."""
    examples = 0
    refuse_pointer(path)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                example = json.loads(line)
                completions, label = example["completions"], example["label"]
                fine = (isinstance(example["context"], str) and len(completions) >= 2 and isinstance(label, int)
                        and all(isinstance(text, str) and text for text in completions) and 0 <= label < len(completions))
            except (ValueError, KeyError, TypeError):
                fine = False
            if not fine:
                raise InvalidArgument(f'{path}:{number}: expected {{"context": TEXT, "completions": [TEXT, TEXT, ...], '
                                      '"label": N}, with the number of the right one from 0')
            examples += 1
    if not examples:
        raise InvalidArgument(f"{path} has no examples")
    return {"task": os.path.basename(path), "dataset_path": "json", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": os.path.abspath(path)}}, "output_type": "multiple_choice",
            "doc_to_text": "{{context}}", "doc_to_choice": "{{completions}}", "doc_to_target": "{{label}}",
            "target_delimiter": "", "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True}
                                                    for name in ("acc", "acc_norm")]}


def score(model: str, tasks: List[str], **more: Any) -> Dict[str, Dict[str, Any]]:
    """The metrics of each task. `more` goes to lm_eval.simple_evaluate: limit, batch_size, device, num_fewshot."""
    if not os.path.exists(os.path.join(model, "config.json")):
        raise InvalidArgument(f"{model} has no config.json: python3 -m causeway.huggingface export makes such a folder")
    refuse_pointers(model)
    named = [_task(task) if task.endswith(".jsonl") else task for task in tasks]
    if not named:
        raise InvalidArgument("--tasks must name a task, or a file of examples")
    try:
        import lm_eval
    except ImportError:
        raise missing("lm_eval", "scoring") from None
    found = lm_eval.simple_evaluate(model="hf", model_args={"pretrained": model, "dtype": "auto"}, tasks=named, **more)
    return {name: {key.split(",")[0]: value for key, value in result.items() if isinstance(value, (int, float))}
            for name, result in found["results"].items()}


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m causeway.score", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="config.json, safetensors and a tokenizer")
    parser.add_argument("--tasks", required=True, metavar="TASK,...", help="of the harness, or files *.jsonl")
    parser.add_argument("--limit", type=int, help="takes so many examples of each")
    parser.add_argument("--num_fewshot", type=int, help="examples in front of each; else as the task says")
    parser.add_argument("--batch_size", default="8", help="or auto")
    parser.add_argument("--device", default=None, help="cpu, cuda; else the GPU where there is one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        found = score(options.model, [task for task in options.tasks.split(",") if task], limit=options.limit,
                      num_fewshot=options.num_fewshot, batch_size=options.batch_size, device=options.device)
    except (InvalidArgument, OSError) as error:
        print(f"causeway.score: {error.message if isinstance(error, InvalidArgument) else error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, result in found.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
