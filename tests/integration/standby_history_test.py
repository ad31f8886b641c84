"""Every acknowledgement that workers saw, with the coordinator's epoch and the time: at no time do two
coordinators acknowledge, and what was acknowledged is there. Real processes."""

import json
import unittest

from cluster import BIN, MODEL, SIGTERM, wait_until
from etcd import main
from machines import FOR_EVER_S, Machines, Proxy
from run_record import records

# A round closes without a worker that is cut off.
RUN = """
run_name: "history"
train { steps: 1000000 }
sync { fragments: 2 steps_between_syncs: 6 codec_up: INT4 codec_down: INT4 }
membership { start_workers: 2 max_workers: 2 quorum: 1 grace_ms: 200 lease_ms: 20000 }
"""
ENOUGH = 60  # Acknowledgements.


def two_at_once(history):
    """What an earlier epoch acknowledged though it was offered after a later one had acknowledged."""
    began = {}
    for line in history:
        epoch = line["epoch"]
        began[epoch] = min(began.get(epoch, line["told_unix_s"]), line["told_unix_s"])
    return [line for line in history
            if any(epoch > line["epoch"] and told < line["offered_unix_s"]
                   for epoch, told in began.items())]


class Recorded(Machines):
    """Two drivers: one that stays with the first machine, one that moves to who serves."""

    def __init__(self):
        super().__init__()
        self.config.write_text(MODEL + RUN)
        self.of_the_moving = Proxy(self.ports[0])

    def __exit__(self, *error):
        super().__exit__(*error)
        self.of_the_moving.stop()

    def drive(self):
        def start(name, addresses):
            return self.start(
                f"{name}.log", BIN / "causeway-wan-exchange", f"--id={name}", "--pushes=2",
                "--pulls=2", "--seconds=100000", f"--history={self.folder / name}",
                "--coordinator=" + ",".join(f"127.0.0.1:{port}" for port in addresses))
        return (start("stays", self.ports[:1]),
                start("moves", [self.of_the_moving.port, self.ports[1]]))

    def history(self, name):
        path = self.folder / name
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True)
                if line.endswith("\n")]

    def wait_for_history(self, name, count, epoch=0):
        wait_until(lambda: sum(line["epoch"] > epoch for line in self.history(name)) >= count,
                   f"{name} has {count} acknowledgements after epoch {epoch}")

    def epochs(self):
        return sorted({line["epoch"] for name in ("stays", "moves")
                       for line in self.history(name)})


def contributions(folder):
    return {(one.header.worker_id, one.header.fragment, one.header.round)
            for one in records(folder, "contribution")}


class HistoryTest(unittest.TestCase):
    def test_at_no_time_do_two_acknowledge(self):
        with Recorded() as machines:
            first, second = machines.both()
            machines.drive()
            machines.wait_for_history("stays", ENOUGH)
            machines.wait_for_history("moves", ENOUGH)
            epoch, = machines.epochs()
            for proxy in machines.to_etcd + [machines.to_first]:
                proxy.stall(FOR_EVER_S)
            machines.of_the_moving.refuse()
            machines.of_the_moving.cut()
            machines.wait_for_history("moves", ENOUGH, epoch)
            self.assertEqual(first.wait(), 1, first.log())
            history = machines.history("stays") + machines.history("moves")
            self.assertEqual(len(machines.epochs()), 2)
            self.assertEqual(two_at_once(history), [])
            second.signal(SIGTERM)
            second.wait()
            told = {(line["worker"], line["fragment"], line["round"]) for line in history}
            self.assertLessEqual(told, contributions(machines.run_dir(1)))


if __name__ == "__main__":
    main()
