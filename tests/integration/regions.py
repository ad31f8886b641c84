"""Trees of coordinators and workers as real processes on loopback."""

import argparse
import json
import re

from cluster import COORDINATOR, Cluster, json_lines, wait_until


def layout(text):
    """(regions, sites of each) of an option's RxN."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected REGIONSxSITES such as 2x4, got '{text}'")
    return int(found[1]), int(found[2])


def tell(report, as_json):
    """A measurement's figures: an object of JSON, or lines."""
    print(json.dumps(report) if as_json else "\n".join(f"{key}: {value}" for key, value in report.items()))


class Tree(Cluster):
    """A hub (the cluster's coordinator) with regions under it."""

    def region_address(self, name):
        return (self.folder / f"{name}.address").read_text().strip()

    def region_command(self, name, sites, parent=None):
        return [COORDINATOR, "serve", f"--run_dir={self.folder / name}",
                f"--parent={parent or self.address}", f"--region_id={name}", f"--sites={sites}",
                "--listen=127.0.0.1:0", f"--address_file={self.folder / (name + '.address')}",
                "--exit_when_finished", "--http=off"]

    def start_region(self, name, sites, *flags, parent=None, variables=None):
        address = self.folder / f"{name}.address"
        address.unlink(missing_ok=True)
        region = self.start(f"{name}.log", *self.region_command(name, sites, parent), *flags,
                            variables=variables)
        wait_until(lambda: address.exists() or region.child.poll() is not None,
                   f"the region {name} listens")
        return region

    def region_rounds(self, name):
        return json_lines(self.folder / name / "rounds.jsonl")

    def write(self, path, value):
        (self.folder / path).write_text(json.dumps(value))
