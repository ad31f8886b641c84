#!/usr/bin/python3
"""Screenshots of a coordinator's status page, for docs/figures and for looking at it.

    tests/integration/status_page_figures.py --address=127.0.0.1:7071 --out=docs/figures

Makes status_page_1400.png and status_page_400.png of the page as it is at this moment; --all makes
whole pages, also dark and as people without red, green, blue or any color vision see it.
"""

import argparse
import pathlib
import sys

import browser

_DEFICIENCIES = ("protanopia", "deuteranopia", "tritanopia", "achromatopsia")
_READY = "return document.querySelectorAll('#timeline .bar').length > 0;"


def shrink(path):
    """256 colors are enough for a page, and a quarter of the bytes."""
    from PIL import Image
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="status_page_figures.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args(arguments)
    if browser.MISSING:
        print(f"status_page_figures: install {browser.MISSING}", file=sys.stderr)
        return 2
    # Here, as it needs python3-selenium.
    from selenium.webdriver.support.ui import WebDriverWait
    options.out.mkdir(parents=True, exist_ok=True)
    made = []

    with browser.Browser() as page:
        def shoot(name, height=None):
            path = options.out / f"{name}.png"
            page.screenshot(path, height)
            shrink(path)
            made.append(path)

        page.prefer("light")
        for width, height in ((1400, 1815), (400, 2000)):
            page.resize(width)
            page.open(f"http://{options.address}/")
            WebDriverWait(page.driver, 60).until(lambda driver: driver.execute_script(_READY))
            shoot(f"status_page_{width}", None if options.all else height)
            if not options.all:
                continue
            page.prefer("dark")
            shoot(f"status_page_{width}_dark")
            page.prefer("light")
            for kind in _DEFICIENCIES:
                page.command("Emulation.setEmulatedVisionDeficiency", type=kind)
                shoot(f"status_page_{width}_{kind}")
            page.command("Emulation.setEmulatedVisionDeficiency", type="none")
    for path in made:
        print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
