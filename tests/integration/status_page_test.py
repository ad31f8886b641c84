"""The status page of a real run in a real Chromium: that it renders, goes on by itself, survives a
restart of the coordinator, fits a phone, needs no color vision, and takes nothing that a worker
says for markup."""

import io
import json
import pathlib
import signal
import sys
import unittest

import browser
from cluster import CTL, SIGTERM, SYNC, Cluster, free_port, get, output_of, wait_until
from regions import Tree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "worker" / "python"))
from causeway.demo import report  # noqa: E402

SETTINGS = (SYNC + "train { steps: 100000 optimizer: MUON evaluate_every_steps: 20 } "
            "membership { start_workers: 2 max_workers: 4 lease_ms: 2000 } ")
PACE = "--max_tokens_per_second=1280"  # 20 steps a second.
WIDTHS = (1400, 1100, 860, 400)
# Messages of a connection that is refused while the coordinator is away: not the page's own.
HARMLESS = ("net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET", "net::ERR_EMPTY_RESPONSE")
HOSTILE = "<img src=x onerror=document.title='pwned'>\"'&amp;</td><script>document.title=1</script>"


def api(cluster, path):
    return json.loads(get(cluster.http_address, f"/api/v1/{path}")[1])


class StatusPageTest(unittest.TestCase):
    def shows(self, page, identifier, text):
        wait_until(lambda: text in page.text(identifier), f"#{identifier} shows {text!r}")

    def assert_quiet(self, page):
        """Nothing but lost connections is on the console."""
        said = [text for level, text in page.console()
                if level != "INFO" and not any(code in text for code in HARMLESS)]
        self.assertEqual(said, [])

    def curve(self, page, number):
        """The points (x, y) of a curve of the loss, the held-out one first; [] while there is none."""
        return page.run(
            "const chart = Chart.getChart('loss-plot'), curve = chart && chart.data.datasets[arguments[0]];"
            "return curve ? curve.data.map(point => [point.x, point.y]) : [];", number)

    def step_shown(self, page):
        return int(page.text("progress").split(" ")[0])

    def test_a_run_from_its_first_worker_on(self):
        with Cluster() as cluster, browser.Browser() as page:
            cluster.start_coordinator(SETTINGS)
            page.resize(1400)
            page.open(f"http://{cluster.http_address}/")
            self.shows(page, "run-state", "waiting for workers")
            self.shows(page, "workers", "No worker has joined yet.")
            self.shows(page, "timeline", "No round has begun yet.")
            self.assertIn("No steps have been reported yet.", page.text("main"))

            for name in ("a", "b"):
                cluster.start_worker(name, PACE)
            self.shows(page, "run-state", "training")
            wait_until(lambda: self.step_shown(page) > 20, "the page shows step 20")
            before = self.step_shown(page)
            wait_until(lambda: self.step_shown(page) > before, "the page goes on by itself")
            self.shows(page, "workers", "active")
            self.shows(page, "round-reason", "every expected worker contributed (2)")
            self.shows(page, "events", "training_started")
            self.shows(page, "held-out-note", "nats per token, at step")
            self.shows(page, "bytes", "times")
            wait_until(lambda: self.curve(page, 2), "the curves are drawn")
            points = self.curve(page, 1)
            self.assertTrue(all(0 < loss < 20 for _, loss in points), points)
            # Every round has its stages, told apart by patterns.
            fills = page.run("return [...document.querySelectorAll('#timeline .bar rect')]"
                             ".map(r => r.getAttribute('fill')).filter(f => f !== null);")
            self.assertLessEqual({"url(#fill-wait)", "url(#fill-apply)"}, set(fills))

            page.click("round-earlier")
            self.assertEqual(page.run(
                "return document.getElementById('round-newest').getAttribute('aria-pressed');"),
                "false")
            chosen = page.text("round-title")
            before = self.step_shown(page)
            wait_until(lambda: self.step_shown(page) > before, "another update comes")
            self.assertEqual(page.text("round-title"), chosen)
            page.run("document.getElementById('configuration').open = true;")
            self.shows(page, "configuration-text", "steps_between_syncs: 6")
            self.assert_quiet(page)

            self.fits_every_width(page)
            self.needs_no_color(page)
            self.assert_quiet(page)

            # What it saves is a report of a run that goes on.
            self.assertEqual(page.run("return document.querySelector('#save a').href;"),
                             f"http://{cluster.http_address}/report.html")
            saved = cluster.folder / "saved.html"
            saved.write_text(get(cluster.http_address, "/report.html")[1])
            page.open(saved.as_uri())
            self.shows(page, "connection", "A report of what was known while the coordinator ran")
            self.assertEqual([page.text(name) for name in ("run-state", "save")], ["▶ training", ""])
            self.assertGreaterEqual(self.step_shown(page), before)
            self.assert_quiet(page)

    def test_a_region_has_its_sites_below_it(self):
        with Tree() as tree, browser.Browser() as page:
            tree.start_coordinator(SETTINGS)
            tree.start_region("eu", 2)
            for name in ("site-1", "site-2"):
                tree.start_worker(name, PACE, address=tree.region_address("eu"))
            page.resize(1400)
            page.open(f"http://{tree.http_address}/")
            self.shows(page, "run-state", "training")
            self.shows(page, "workers", "└ site-2")
            self.shows(page, "workers", "below eu")
            region, = api(tree, "workers")["workers"]
            self.assertEqual([site["id"] for site in region["sites"]], ["site-1", "site-2"])
            self.assert_quiet(page)
            self.fits_every_width(page)

    def fits_every_width(self, page):
        for width in WIDTHS:
            page.resize(width, 800)
            wait_until(lambda: page.run("return document.documentElement.clientWidth;") == width,
                       f"the page is {width} wide")
            # Whatever is wider would make the page scroll sideways. Charts follow some frames later.
            wait_until(lambda: self.too_wide(page) == [], f"nothing is wider than {width}")
            self.assertLessEqual(
                page.run("return document.documentElement.scrollWidth;"), width)
            self.assertGreaterEqual(float(page.run(
                "return parseFloat(getComputedStyle(document.body).fontSize);")), 14)

    def too_wide(self, page):
        return page.run(
            "return [...document.querySelectorAll('body *')].filter(n => "
            "  n.getBoundingClientRect().right > innerWidth + 1 && !n.closest('.scroll, .skip,"
            "  caption, .timeline, pre, thead')).map(n => n.outerHTML.slice(0, 80));")

    def needs_no_color(self, page):
        """Without color vision the page still has its contrasts, and every worker its symbol."""
        page.resize(1400)
        symbols = page.run("return [...document.querySelectorAll('#workers .symbol')]"
                           ".map(n => n.textContent);")
        self.assertEqual(len(symbols), 2)
        self.assertEqual(len(set(symbols)), 2)
        dashes = page.run("return Chart.getChart('loss-plot').data.datasets.slice(1)"
                          ".map(d => d.borderDash.join());")
        self.assertEqual(len(set(dashes)), 2)
        page.command("Emulation.setEmulatedVisionDeficiency", type="achromatopsia")
        picture = page.command("Page.captureScreenshot", format="png")["data"]
        page.command("Emulation.setEmulatedVisionDeficiency", type="none")
        try:
            from PIL import Image
        except ImportError:
            return  # The rest has been checked.
        import base64
        with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
            colors = image.convert("RGB").getcolors(1 << 24)
        self.assertTrue(all(max(c) - min(c) <= 8 for _, c in colors), "it is gray")
        levels = {c[0] for _, c in colors}
        self.assertLess(min(levels), 60)
        self.assertGreater(max(levels), 240)

    def test_the_coordinator_is_killed_and_comes_back(self):
        with Cluster() as cluster, browser.Browser() as page:
            flags = [f"--http=127.0.0.1:{free_port()}", f"--listen=127.0.0.1:{free_port()}"]
            cluster.start_coordinator(SETTINGS, *flags)
            for name in ("a", "b"):
                cluster.start_worker(name, PACE)
            page.open(f"http://{cluster.http_address}/")
            wait_until(lambda: "training" in page.text("run-state") and self.step_shown(page) > 20,
                       "the page shows step 20")
            wait_until(lambda: len(self.curve(page, 1)) > 2, "there is a curve")

            cluster.coordinator.kill()
            self.shows(page, "banner", "Connection lost, retrying.")
            # A tenth of a second is all that they have.
            self.shows(page, "banner", "Workers wait for the coordinator by now")
            self.assertTrue(page.run("return document.body.classList.contains('stale');"))
            step = self.step_shown(page)  # The last values stay, marked as old.
            self.assertGreater(step, 20)

            cluster.start_coordinator(SETTINGS, *flags)
            wait_until(lambda: page.text("banner") == "", "the banner goes")
            self.assertFalse(page.run("return document.body.classList.contains('stale');"))
            wait_until(lambda: self.step_shown(page) > step + 20, "training goes on")
            self.shows(page, "events", "recovered")
            self.shows(page, "events", "training_started")  # From the former process.
            wait_until(lambda: any(x > step for x, _ in self.curve(page, 1)), "the curve goes on")
            self.assert_quiet(page)

    def test_late_answers_and_what_is_left_before_a_wait(self):
        settings = SETTINGS.replace("overlap_steps: 2", "overlap_steps: 2 max_overlap_steps: 5")
        settings = settings.replace("lease_ms: 2000", "lease_ms: 9000")
        with Cluster() as cluster, browser.Browser() as page:
            cluster.start_coordinator(settings)
            page.open(f"http://{cluster.http_address}/")
            workers = [cluster.start_worker(name, PACE) for name in ("a", "b")]
            self.shows(page, "run-facts", "applied 2 to 5 steps later")
            self.shows(page, "workers", "before it waits")
            workers[1].signal(signal.SIGSTOP)  # Rounds wait for it, and so does the other one.
            self.shows(page, "attention", "late, and it waits.")
            self.shows(page, "attention", "Worker a: ")
            self.shows(page, "workers", "late, waits")
            shown = output_of(CTL, "status", f"--coordinator={cluster.address}")
            self.assertRegex(shown, r"(?m)^a: \d answers? (is|are) late, and it waits$")
            workers[1].signal(signal.SIGCONT)
            wait_until(lambda: "late" not in page.text("attention"), "nothing is late any more")
            self.assert_quiet(page)

    def test_a_run_that_is_over_says_so_and_leaves_a_report_that_opens_from_the_disk(self):
        with Cluster() as cluster, browser.Browser() as page:
            cluster.start_coordinator(SETTINGS.replace("100000", "40"), "--noexit_when_finished")
            page.open(f"http://{cluster.http_address}/")
            workers = [cluster.start_worker(name, PACE, "--sample_tokens=80")
                       for name in ("worker-0", "worker-1")]
            self.shows(page, "run-state", "finished")
            self.shows(page, "progress", "40 of 40")
            self.shows(page, "workers", "left")
            self.assertEqual(page.text("attention"), "")
            cluster.coordinator.signal(SIGTERM)
            self.shows(page, "banner", "All steps were done")
            self.assertEqual([process.wait() for process in (*workers, cluster.coordinator)], [0, 0, 0])

            report.write_report(cluster.folder)
            numbers = json.loads((cluster.folder / "report.json").read_text())
            self.assertEqual(numbers["notes"], [])
            page.open((cluster.folder / "report.html").as_uri())
            self.shows(page, "connection", "A report of what was known when the coordinator stopped")
            for identifier, text in (
                    ("run-state", "■ finished"), ("banner", ""), ("attention", ""),
                    ("progress", "40 of 40"), ("tokens", "5.12 k"),
                    ("held-out", f"{numbers['eval_loss']:.3f}")):
                self.assertEqual(page.text(identifier), text)
            for identifier, text in (
                    ("workers", "worker-1"), ("events", "coordinator_stopped"),
                    ("round-reason", "every expected worker contributed (2)")):
                self.assertIn(text, page.text(identifier))
            self.assertAlmostEqual(float(page.text("bytes").split(" ")[0]),
                                   numbers["data_parallel_ratio"], delta=0.05)
            self.assertEqual([[step, f"{loss:.3f}"] for step, loss in self.curve(page, 0)],
                             [[step, f"{loss:.3f}"] for step, loss in numbers["eval_curve"]])
            page.run("const axis = document.getElementById('loss-axis'); axis.value = 'time';"
                     "axis.dispatchEvent(new Event('change'));")
            at = [time for time, _ in self.curve(page, 0)]
            self.assertEqual(at, sorted(at))
            self.assertGreater(at[0], 1e9)
            inside = page.run("return JSON.parse(document.getElementById('answers').textContent);")
            self.assertEqual(len(inside["rounds"]["rounds"]), numbers["rounds"])
            workers = inside["workers"]["workers"]
            self.assertAlmostEqual(float(page.text("computing").removesuffix(" %")),
                                   50 * sum(one["utilization"] for one in workers), delta=0.06)
            # The last one, although worker-0 measured the held-out loss after it.
            self.assertEqual([one["checkpoint_step"] for one in workers], [40, 40])
            sample = page.run("return document.getElementById('sample-text').textContent;")
            self.assertEqual(f"{sample}\n".encode(), (cluster.folder / "sample.txt").read_bytes())
            page.run("document.getElementById('configuration').open = true;")
            self.shows(page, "configuration-text", "steps_between_syncs: 6")
            self.assertEqual(page.run("return performance.getEntriesByType('resource').length;"), 0)
            self.fits_every_width(page)
            self.assert_quiet(page)

            # Served once more, the run is known less well: its report stays.
            left = cluster.folder / "coordinator" / "report.html"
            before = left.read_bytes()
            cluster.start_coordinator(SETTINGS.replace("100000", "40"), "--noexit_when_finished")
            self.assertEqual(api(cluster, "status")["run"]["state"], "finished")
            cluster.coordinator.stop()
            self.assertEqual(left.read_bytes(), before)

            # A worker's name in it is no more than text.
            hostile = json.dumps(HOSTILE).replace("<", "\\u003c")
            left.write_text(before.decode().replace('"worker-1"', hostile))
            page.open(left.as_uri())
            self.shows(page, "workers", HOSTILE)
            self.assertEqual(page.run("return document.querySelectorAll('img').length;"), 0)
            self.assertIn("Causeway", page.driver.title)
            self.fits_every_width(page)
            self.assert_quiet(page)

    def test_what_a_worker_calls_itself_is_never_markup(self):
        """Ids are checked at the join; the page does not rely on it."""
        with Cluster() as cluster, browser.Browser() as page:
            cluster.start_coordinator(SETTINGS)
            for name in ("a", "b"):
                cluster.start_worker(name, PACE)
            wait_until(lambda: any(r["published"] for r in api(cluster, "rounds")["rounds"]),
                       "a round is published")
            page.open("about:blank")
            # Before the page's own scripts: whatever the coordinator says carries the hostile name.
            page.command("Page.addScriptToEvaluateOnNewDocument", source=f"""
                const real = window.fetch;
                const name = {json.dumps(HOSTILE)};
                window.fetch = async (...parameters) => {{
                  const answer = await real(...parameters);
                  if (String(parameters[0]).includes('config')) return answer;
                  const change = (value, key) => {{
                    if (Array.isArray(value)) return value.map((one) => change(one, key));
                    if (value !== null && typeof value === 'object') {{
                      return Object.fromEntries(
                        Object.entries(value).map(([k, v]) => [k, change(v, k)]));
                    }}
                    const texts = ['id', 'name', 'device', 'version', 'message', 'event', 'reason',
                                   'waiting_for', 'contributed', 'missing', 'codec_up', 'mode'];
                    return typeof value === 'string' && texts.includes(key) ? value + name : value;
                  }};
                  return new Response(JSON.stringify(change(await answer.json(), '')));
                }};""")
            page.open(f"http://{cluster.http_address}/")
            self.shows(page, "workers", HOSTILE)
            self.shows(page, "events", HOSTILE)
            self.shows(page, "round-reason", HOSTILE)
            self.shows(page, "run-facts", HOSTILE)
            self.assertEqual(page.run("return document.querySelectorAll('img').length;"), 0)
            self.assertEqual(page.run(
                "return [...document.scripts].filter(s => s.src === '').length;"), 0)
            self.assertIn("Causeway", page.driver.title)
            self.fits_every_width(page)
            self.assert_quiet(page)

    def test_nothing_is_loaded_from_elsewhere(self):
        with Cluster() as cluster, browser.Browser() as page:
            cluster.start_coordinator(SETTINGS)
            page.open(f"http://{cluster.http_address}/")
            self.shows(page, "run-state", "waiting")
            origin = f"http://{cluster.http_address}/"
            loaded = page.run("return performance.getEntriesByType('resource').map(e => e.name);")
            self.assertGreater(len(loaded), 6)
            self.assertEqual([name for name in loaded if not name.startswith(origin)], [])
            # The policy holds: a script in the page is not run.
            page.run("const s = document.createElement('script'); s.textContent = "
                     "'window.injected = 1'; document.body.append(s);")
            self.assertIsNone(page.run("return window.injected;"))
            # Its report says that it ended before the run did.
            cluster.coordinator.stop()
            page.open((cluster.folder / "coordinator" / "report.html").as_uri())
            self.shows(page, "run-state", "stopped")
            self.assertIn("No worker has joined yet.", page.text("workers"))


if __name__ == "__main__":
    if browser.MISSING:
        print(f"skipped: install {browser.MISSING} (deploy/install_packages packages_browser)")
        sys.exit(77)
    unittest.main()
