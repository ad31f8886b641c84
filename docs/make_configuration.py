#!/usr/bin/env python3
"""Makes docs/configuration.md of the comments in proto/causeway/v1/config.proto.

usage: docs/make_configuration.py [--check]

--check writes nothing: status 1 if the page is not what the comments say.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROTO = ROOT / "proto" / "causeway" / "v1" / "config.proto"
PAGE = ROOT / "docs" / "configuration.md"

HEAD = """# Configuration

<!-- Made by docs/make_configuration.py of the comments in proto/causeway/v1/config.proto: change them there. -->

One file describes a run: a textproto ([an example](operating.md#the-pieces)).

The coordinator owns it (`serve --config=FILE`, over the settings of `--preset=NAME` if there is one) and hands it to every worker
that joins. [algorithm.md](algorithm.md#defaults-presets-and-why) has the presets and their reasons. Before a run begins,

```sh
causewayctl config presets                              # what there is to start from
causewayctl config check run.textproto --preset=best    # every setting, filled in, and warnings
causewayctl config diff run.textproto other.textproto
causewayctl config show --coordinator=10.0.0.1:7070     # that of a run
```

In brackets: the type (a flag is true or false), and the default; without one it is 0, false or nothing. A model's shape must be given, or `model.preset`.
Settings that contradict each other are refused with the field's name, the value it has and those that it may have. The fields of a
run that has begun never change.
"""

FIELD = re.compile(r"^(optional |repeated )?([A-Za-z0-9_.]+) ([a-z0-9_]+) = \d+;(?:\s*//\s?(.*))?$")
VALUE = re.compile(r"^([A-Z0-9_]+) = (\d+);(?:\s*//\s?(.*))?$")
BEGIN = re.compile(r"^(message|enum) ([A-Za-z0-9_]+) \{$")
COMMENT = re.compile(r"^//\s?(.*)$")
DEFAULT = re.compile(r"\s*\bDefault: (.+?)\.(?=\s|$)", re.DOTALL)
TYPES = {"string": "text", "bool": "flag", "double": "number", "int32": "integer",
         "int64": "integer", "uint64": "integer"}


class Node:
    """A message or an enumeration: its comment, and its (name, type or number, comment)s."""

    def __init__(self, name, comment):
        self.name = name
        self.comment = comment
        self.entries = []


def parse(text):
    """{name: Node} of all messages, and of all enumerations, which a message's name and a dot precede
    where they stand within it. Fails on what it does not know."""
    messages = {}
    enums = {}
    open_nodes = []
    comment = []  # Lines that stand before what comes next.
    trailing_indent = None  # Indent of a line whose comment may go on in the next one.
    for number, line in enumerate(text.splitlines(), 1):
        indent = len(line) - len(line.lstrip())
        words = line.strip()
        said = COMMENT.match(words)
        if said:
            if trailing_indent is not None and indent > trailing_indent:
                open_nodes[-1].entries[-1][2].append(said[1])
            else:
                comment.append(said[1])
            continue
        trailing_indent = None
        if not words:
            comment = []
        elif begin := BEGIN.match(words):
            node = Node(begin[2], comment)
            if begin[1] == "message":
                messages[node.name] = node
            else:
                enums[f"{open_nodes[-1].name}.{node.name}" if open_nodes else node.name] = node
            open_nodes.append(node)
            comment = []
        elif words == "}":
            open_nodes.pop()
            comment = []
        elif open_nodes and (entry := FIELD.match(words)):
            kind = ("repeated " if entry[1] == "repeated " else "") + entry[2]
            open_nodes[-1].entries.append((entry[3], kind, comment + ([entry[4]] if entry[4] else [])))
            comment = []
            trailing_indent = indent if entry[4] else None
        elif open_nodes and (entry := VALUE.match(words)):
            open_nodes[-1].entries.append((entry[1], entry[2], comment + ([entry[3]] if entry[3] else [])))
            comment = []
            trailing_indent = indent if entry[3] else None
        elif not words.startswith(("syntax ", "package ", "import ", "reserved ")):
            raise ValueError(f"{PROTO}:{number}: not understood: {words}")
        else:
            comment = []
    return messages, enums


def prose(lines):
    """Comment lines as Markdown: one line, with links."""
    text = re.sub(r"\s+", " ", " ".join(lines)).strip()
    text = text.replace("*", "\\*")
    text = re.sub(r"\bdocs/([a-z_]+\.md)", r"[\1](\1)", text)
    return re.sub(r"\b(?:arXiv )?(\d{4}\.\d{5})\b", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def default_of(lines):
    """(the text without its default, the default or "")."""
    text = prose(lines)
    found = DEFAULT.search(text)
    if found is None:
        return text, ""
    return (text[:found.start()] + text[found.end():]).strip(), found[1]


def enum_default(node):
    """What the value 0 stands for."""
    for _, number, comment in node.entries:
        if number == "0":
            return prose(comment).rstrip(".")
    return ""


def enum_lines(node):
    lines = ["", f"`{node.name}`" + (f": {prose(node.comment)}" if node.comment else ""), ""]
    for name, number, comment in node.entries:
        if number != "0":
            lines.append(f"- `{name}`" + (f": {prose(comment)}" if comment else ""))
    return lines


def message_lines(node, prefix, messages, enums, shown):
    """The fields, the values of its enumerations, then the messages within."""
    lines = ["", prose(node.comment), ""] if node.comment else [""]
    used = []
    nested = []
    for name, kind, comment in node.entries:
        text, default = default_of(comment)
        repeated = kind.startswith("repeated ")
        kind = kind.removeprefix("repeated ")
        if kind in messages:
            nested.append((f"{prefix}{name}", messages[kind]))
            link = f"{prefix}{name}".replace(".", "").lower()
            lines.append(f"- `{prefix}{name}`: {'each ' if repeated else ''}[below](#{link})"
                         + (f". {text}" if text else ""))
            continue
        scoped = f"{node.name}.{kind}" if f"{node.name}.{kind}" in enums else kind
        if scoped in enums:
            default = default or enum_default(enums[scoped])
            if scoped not in shown:
                shown.add(scoped)
                used.append(enums[scoped])
            kind = f"`{kind}`"
        elif kind not in TYPES:
            raise ValueError(f"{PROTO}: {node.name}.{name} has the unknown type {kind}")
        else:
            kind = TYPES[kind] + (", repeated" if repeated else "")
        lines.append(f"- `{prefix}{name}` ({kind}{f'; {default}' if default else ''})"
                     + (f": {text}" if text else ""))
    for enum in used:
        lines += enum_lines(enum)
    for path, message in nested:
        lines += ["", f"{'##' if prefix == '' else '###'} {path}"]
        lines += message_lines(message, f"{path}.", messages, enums, shown)
    return lines


def page(text):
    messages, enums = parse(text)
    shown = set()
    lines = ["", "## The run"] + message_lines(messages["RunConfig"], "", messages, enums, shown)
    if missing := set(enums) - shown:
        raise ValueError(f"{PROTO}: no field has the type {', '.join(sorted(missing))}")
    return HEAD + "\n".join(lines) + "\n"


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    made = page(PROTO.read_text())
    if not arguments:
        PAGE.write_text(made)
        return 0
    if PAGE.is_file() and PAGE.read_text() == made:
        return 0
    print("docs/configuration.md is not what config.proto says: run docs/make_configuration.py",
          file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
