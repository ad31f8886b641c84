"""Every picture in README and docs exists, and the page that shows it has the command that makes it."""

import re
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)#]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def is_made_by(picture, code):
    """Whether a command there names the picture, or the folder that a command fills."""
    name = picture.relative_to(ROOT).as_posix()
    if name in code:
        return True
    folder = re.escape(picture.parent.relative_to(ROOT).as_posix())
    return re.search(rf"--(figures|out)[ =]{folder}(?![\w/-])", code) is not None


class FiguresTest(unittest.TestCase):
    def test_every_picture_has_its_command_on_its_page(self):
        shown = set()
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            code = "\n".join(_CODE.findall(text))
            for link in _PICTURE.findall(text):
                if "://" in link:
                    continue
                picture = (page.parent / link).resolve()
                shown.add(picture)
                with self.subTest(page=page.name, picture=link):
                    self.assertTrue(picture.exists(), f"{page.name} shows {link}, which is not there")
                    self.assertTrue(is_made_by(picture, code),
                                    f"{page.name} shows {link} without the command that makes it")
        self.assertGreater(len(shown), 3)

    def test_every_figure_is_mentioned(self):
        text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
        for figure in sorted((ROOT / "docs" / "figures").rglob("*")):
            if figure.is_file():
                with self.subTest(figure=figure.name):
                    own = figure.parent.name  # docs/figures/study is written as a whole.
                    self.assertTrue(f"docs/figures/{figure.name}" in text or f"figures/{figure.name})" in text
                                    or (own != "figures" and f"--figures docs/figures/{own}" in text),
                                    f"no page names {figure.name}")

    def test_a_command_for_another_folder_does_not_count(self):
        picture = ROOT / "docs" / "figures" / "study" / "a.svg"
        self.assertTrue(is_made_by(picture, "`study.py --figures docs/figures/study`"))
        self.assertFalse(is_made_by(picture, "`study.py --figures docs/figures`"))
        self.assertFalse(is_made_by(picture, "`study.py --figures docs/figures/study-large`"))


if __name__ == "__main__":
    sys.exit(unittest.main())
