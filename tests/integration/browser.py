"""A real Chromium without a screen, for tests of the status page.

It needs Debian's chromium, chromium-driver and python3-selenium, which are no part of
deploy/packages but of deploy/packages_browser: MISSING says what is not there.
"""

import base64
import pathlib
import shutil

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
except ImportError:
    webdriver = None

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
MISSING = ", ".join(name for name, found in (
    ("chromium", CHROMIUM), ("chromium-driver", DRIVER), ("python3-selenium", webdriver))
    if not found)


class Browser:
    """Use as a context manager. One page at a time."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--hide-scrollbars", "--no-proxy-server"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service(DRIVER), options=options)
        self.driver.set_script_timeout(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()

    def resize(self, width, height=900):
        """In pixels of the page; a narrow one is a phone's."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                     deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, scheme):
        """"light" or "dark"."""
        self.command("Emulation.setEmulatedMedia",
                     features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address):
        self.driver.get(address)

    def command(self, name, **parameters):
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def text(self, identifier):
        """As it is shown; "" if it is not."""
        return self.run("const n = document.getElementById(arguments[0]);"
                        "return n && n.offsetParent !== null ? n.innerText : '';", identifier)

    def click(self, identifier):
        self.run("document.getElementById(arguments[0]).click();", identifier)

    def console(self):
        """What the console got since this was asked last: [(level, text)]."""
        return [(entry["level"], entry["message"]) for entry in self.driver.get_log("browser")]

    def screenshot(self, path, height=None):
        """Of the whole page, or of its top."""
        size = self.run("return [document.documentElement.clientWidth,"
                        "        document.documentElement.scrollHeight];")
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(height or size[1], size[1]),
                "scale": 1}
        answer = self.command("Page.captureScreenshot", format="png", clip=clip,
                              captureBeyondViewport=True)
        pathlib.Path(path).write_bytes(base64.b64decode(answer["data"]))
