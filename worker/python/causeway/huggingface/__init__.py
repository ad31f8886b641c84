"""Checkpoints of Hugging Face into a run and out of it, by `transformers` and `safetensors`.

`python3 -m causeway.huggingface --help`; docs/data.md describes it.
"""

from causeway.huggingface._export import export_folder  # noqa: F401
from causeway.huggingface._import import import_folder  # noqa: F401
