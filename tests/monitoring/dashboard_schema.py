#!/usr/bin/env python3
"""Reads the dashboard with the types that Grafana's developers generate from its schema, and compares
what these make of it with the file: a field that is lost is one that Grafana does not know.

usage: PYTHON tests/monitoring/dashboard_schema.py, where PYTHON has grafana-foundation-sdk of PyPI
(python3 -m venv /tmp/grafana && /tmp/grafana/bin/pip install grafana-foundation-sdk)
"""

import importlib
import json
import pathlib
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARD = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "causeway.json"


def lost(mine, theirs, path=""):
    """The fields of `mine` that `theirs` has not, or has with other values."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key, value in mine.items():
            if key not in theirs:
                yield f"{path}.{key}"
            else:
                yield from lost(value, theirs[key], f"{path}.{key}")
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for i, (one, other) in enumerate(zip(mine, theirs)):
            yield from lost(one, other, f"{path}[{i}]")
    elif mine != theirs:
        yield f"{path}: {mine!r} became {theirs!r}"


def main():
    register_default_plugins()
    given = json.loads(DASHBOARD.read_text())
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(given)))
    problems = list(lost(given, read))
    panels = [panel for panel in given["panels"] if panel["type"] != "row"]
    for panel in panels:
        module = importlib.import_module(f"grafana_foundation_sdk.models.{panel['type']}")
        options = json.loads(JSONEncoder().encode(module.Options.from_json(panel.get("options", {}))))
        problems += lost(panel.get("options", {}), options, f"{panel['title']}: options")
        # Settings that a kind of panel has of its own.
        custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
        if custom and not hasattr(module, "FieldConfig"):
            problems.append(f"{panel['title']}: a {panel['type']} has no custom settings")
        elif custom:
            made = json.loads(JSONEncoder().encode(module.FieldConfig.from_json(custom)))
            problems += lost(custom, made, f"{panel['title']}: custom")
    for problem in problems:
        print(f"not in Grafana's schema: {problem}")
    if problems:
        return 1
    print(f"{DASHBOARD.name}: {len(panels)} panels, every field is in Grafana's schema")
    return 0


if __name__ == "__main__":
    sys.exit(main())
