#!/usr/bin/python3
"""Screenshots of a coordinator's status page, for docs/figures and for looking at it.

    tests/integration/status_page_figures.py --address=127.0.0.1:7071 --out=docs/figures

Makes status_page_1400.png and status_page_400.png of the page as it is at this moment.
"""

import argparse
import pathlib
import sys

import browser

_READY = "return document.querySelectorAll('#timeline .bar').length > 0;"


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="status_page_figures.py", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", required=True, metavar="HOST:PORT")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER")
    options = parser.parse_args(arguments)
    if browser.MISSING:
        print(f"status_page_figures: install {browser.MISSING}", file=sys.stderr)
        return 2
    # Here, as they need more packages.
    from PIL import Image
    from selenium.webdriver.support.ui import WebDriverWait
    options.out.mkdir(parents=True, exist_ok=True)
    with browser.Browser() as page:
        page.prefer("light")
        for width, height in ((1400, 1815), (400, 2000)):
            page.resize(width)
            page.open(f"http://{options.address}/")
            WebDriverWait(page.driver, 60).until(lambda driver: driver.execute_script(_READY))
            path = options.out / f"status_page_{width}.png"
            page.screenshot(path, height)
            with Image.open(path) as image:  # 256 colors are a quarter of the bytes.
                small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            small.save(path, optimize=True)
            print(f"{path}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
