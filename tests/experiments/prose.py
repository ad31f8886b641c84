"""Prose that a Debian machine has installed: documentation of its packages, a document per line.

Headers, quickstart's text, repeat themselves so much that a small model soon knows them. This is what
people wrote for people: pages of manuals, README and NEWS, guides in plain text, Markdown, HTML and
pod. Which packages are installed decides what there is, so figures are compared within one text.

    write(Path("prose.jsonl"))   # {"text": ...} per line, in an order that depends on contents alone
"""

import gzip
import hashlib
import html
import json
import re
from pathlib import Path

FOLDERS = ("/usr/share/doc", "/usr/share/man", "/usr/share/perl", "/usr/share/vim")
# English ones only; gcloud's are thousands of copies of one form.
_MANUAL = re.compile(r".*/man/man\d/(?!gcloud)[^/]+\.\d\w*(\.gz)?")
_NAME = re.compile(r"(readme|news|faq|todo|howto|intro)[^/]*|.*\.(txt|md|rst|html?|pod)", re.IGNORECASE)
_UNWANTED = re.compile(r"change|copying|copyright|license|authors|history|index|toc|genindex",
                       re.IGNORECASE)
_LARGEST_FILE_BYTES = 2 << 20
_SHORTEST_PARAGRAPH = 60  # Characters: what is shorter are headings, lists and code.
_SHORTEST_DOCUMENT = 500


def write(path: Path, folders: tuple[str, ...] | None = None, limit_bytes: int = 40_000_000) -> dict:
    """Documents of the folders, FOLDERS if left out, as JSON lines with at most limit_bytes of text.
    A paragraph that stands in several documents is kept in the first one alone, so that nothing held
    out was trained on. Returns {"documents", "bytes", "sha256"}."""
    texts = set()
    for folder in folders or FOLDERS:
        for file in sorted(Path(folder).rglob("*")):
            if _is_wanted(file) and (text := _text_of(file)):
                texts.add(text)
    seen: set[bytes] = set()
    documents = total = 0
    digest = hashlib.sha256()
    with path.open("w", encoding="utf-8") as output:
        for text in sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest()):
            document = "\n\n".join(_new_paragraphs(text, seen)) + "\n"
            size = len(document.encode())
            if size < _SHORTEST_DOCUMENT or total + size > limit_bytes:
                continue
            output.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
            digest.update(document.encode())
            documents += 1
            total += size
    return {"documents": documents, "bytes": total, "sha256": digest.hexdigest()}


def _is_wanted(file: Path) -> bool:
    name = file.name.removesuffix(".gz")
    wanted = _MANUAL.fullmatch(str(file)) or (_NAME.fullmatch(name) and not _UNWANTED.search(name))
    return bool(wanted) and file.is_file() and file.stat().st_size <= _LARGEST_FILE_BYTES


def _text_of(file: Path) -> str:
    """Plain text without markup; empty for what is no UTF-8 text."""
    try:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        text = content.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
    if "\0" in text:
        return ""
    name = file.name.removesuffix(".gz")
    if _MANUAL.fullmatch(str(file)):
        return _without_groff(text)
    if name.endswith((".html", ".htm")):
        return _without_tags(text)
    return text


def _without_groff(text: str) -> str:
    """Paragraphs of a manual's source. Lines of macros separate them."""
    lines = ["" if line.startswith((".", "'")) else line for line in text.splitlines()]
    text = re.sub(r"\\\*(\(..|\[[^]]*\]|.)|\\f(\(..|\[[^]]*\]|.)|\\s[+-]?\d|\\[&/,|%:]|\\\".*", "", "\n".join(lines))
    text = re.sub(r"\\\((..)|\\\[([^]]*)\]",
                  lambda match: {"em": "-", "en": "-", "aq": "'", "dq": '"', "lq": '"', "rq": '"',
                                 "oq": "'", "cq": "'"}.get(match[1] or match[2], ""), text)
    return text.replace("\\-", "-").replace("\\e", "\\").replace("\\ ", " ")


def _without_tags(text: str) -> str:
    text = re.sub(r"(?is)<(script|style|pre|head|nav)\b.*?</\1>", "\n\n", text)
    text = re.sub(r"(?i)</?(p|div|li|h\d|td|tr|table|ul|ol|dl|dt|dd|br|section)\b[^>]*>", "\n\n", text)
    return html.unescape(re.sub(r"<[^>]*>", "", text))


def _new_paragraphs(text: str, seen: set[bytes]) -> list[str]:
    """Those of a text that are prose and were not seen before, each on one line."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        paragraph = " ".join(paragraph.split())
        if not _is_prose(paragraph):
            continue
        key = hashlib.blake2b(paragraph.encode(), digest_size=12).digest()
        if key not in seen:
            seen.add(key)
            kept.append(paragraph)
    return kept


def _is_prose(paragraph: str) -> bool:
    if len(paragraph) < _SHORTEST_PARAGRAPH:
        return False
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return letters > 0.88 * len(paragraph) and bool(re.search(r"[.:!?]", paragraph))
