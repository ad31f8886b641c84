"""The pages are whole: links and their anchors exist, programs of the repository that a page starts can be
started, and messages that docs/troubleshooting.md explains are ones that the programs have."""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)#:]+)\)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
STARTED = re.compile(r"^(?:sudo )?(?:[A-Z_]+=\S+ )*(?:\./)?((?:deploy|tests)/[\w./-]+)", re.MULTILINE)
ADJACENT = re.compile(r'(?<!\\)"\s*"')
EXPLAINED = re.compile(r"^- (`[^`]+`(?:, `[^`]+`)*): ", re.MULTILINE)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def anchors(text):
    """Of the headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE):
        title = LINK.sub(lambda link: link[0][1:link[0].index("]")], title).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        while slug in found:
            slug += "-1"
        found.add(slug)
    return found


def broken_links(page, text):
    """What the page links to and what is not there."""
    broken = []
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(f"{page.name}: {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
            broken.append(f"{page.name}: {target}: no such heading")
    return broken


def not_startable(text):
    """What a page's commands start by its path and is no program."""
    commands = "\n".join(CODE.findall(text))
    return [path for path in STARTED.findall(commands) if not (ROOT / path).is_file()
            or not os.access(ROOT / path, os.X_OK)]


def is_made_by(picture, code):
    """Whether a command there names the picture, or the folder that a command fills."""
    folder = re.escape(picture.parent.relative_to(ROOT).as_posix())
    return picture.relative_to(ROOT).as_posix() in code or re.search(
        rf"--(figures|out)[ =]{folder}(?![\w/-])", code) is not None


def literals():
    """What stands between quotation marks in the programs, pieces of one text joined."""
    found = []
    for folder in ("common", "server", "worker"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".cc", ".h"):
                text = ADJACENT.sub("", file.read_text())
                found += [one.replace('\\"', '"') for one in LITERAL.findall(text)]
    return found


def explained_messages(text):
    """What the lines begin with, without the section of other programs' messages."""
    for line in EXPLAINED.findall(text[:text.index("\n## Messages of others")]):
        yield from re.findall(r"`([^`]+)`", line)


def missing_pieces(message, texts):
    """The pieces between the message's `...` that no text has."""
    pieces = [piece.strip(' "') for piece in message.split("...")]
    return [piece for piece in pieces if len(piece) > 2 and not any(piece in text for text in texts)]


class DocumentsTest(unittest.TestCase):

    def test_links_lead_somewhere(self):
        self.assertEqual([], [one for page in PAGES for one in broken_links(page, page.read_text())])

    def test_link_that_leads_nowhere_is_found(self):
        page = ROOT / "docs" / "links.md"
        self.assertEqual(2, len(broken_links(page, "[a](nothing.md) [b](algorithm.md#nothing) [c](algorithm.md)")))

    def test_programs_that_pages_start_can_be_started(self):
        self.assertEqual([], [f"{page.name}: {path}" for page in PAGES
                              for path in not_startable(page.read_text())])

    def test_program_that_cannot_be_started_is_found(self):
        self.assertEqual(["tests/docs/nothing", "tests/docs/CMakeLists.txt"], not_startable(
            "```sh\ntests/docs/nothing --now\nsudo tests/docs/CMakeLists.txt\n./tests/run\n```"))

    def test_every_picture_has_its_command_on_its_page(self):
        pictures = [(page, (page.parent / link).resolve()) for page in PAGES for link in PICTURE.findall(page.read_text())]
        self.assertGreater(len(pictures), 3)
        self.assertEqual([], [f"{page.name}: {picture.name}" for page, picture in pictures
                              if not is_made_by(picture, "\n".join(SAID.findall(page.read_text())))])

    def test_every_figure_is_mentioned(self):
        text = "\n".join(page.read_text() for page in PAGES)
        for figure in (ROOT / "docs" / "figures").rglob("*"):
            if figure.is_file():
                own = figure.parent.name  # Such a folder is written as a whole.
                said = f"figures/{figure.name}" if own == "figures" else f"--figures docs/figures/{own}"
                self.assertIn(said, text)

    def test_no_page_has_a_gap(self):
        for page in PAGES:
            self.assertEqual([], re.findall(r"^@[A-Z_]+@$", page.read_text(), re.MULTILINE), page.name)

    def test_every_page_can_be_reached_from_the_readme(self):
        reached, left = set(), [ROOT / "README.md"]
        while left:
            page = left.pop()
            if page in PAGES and page not in reached:
                reached.add(page)
                left += [(page.parent / target.partition("#")[0]).resolve()
                         for target in LINK.findall(CODE.sub("", page.read_text())) if not re.match(r"[a-z]+:|#", target)]
        self.assertEqual([], [page.name for page in PAGES if page not in reached])

    def test_explained_messages_are_those_of_the_programs(self):
        texts = literals()
        messages = list(explained_messages((ROOT / "docs" / "troubleshooting.md").read_text()))
        self.assertGreater(len(messages), 60)
        wrong = {message: pieces for message in messages if (pieces := missing_pieces(message, texts))}
        self.assertEqual({}, wrong)

    def test_message_that_no_program_has_is_found(self):
        self.assertEqual(["is purple"], missing_pieces("the coordinator at ... is purple", ["the coordinator at "]))


if __name__ == "__main__":
    unittest.main()
