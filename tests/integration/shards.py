"""One run over several coordinators, as real processes on loopback."""

from cluster import COORDINATOR, DEADLINE_S, Cluster, json_lines, wait_until


class Sharded(Cluster):
    """The cluster's coordinator is the lead, or all of a run without shards."""

    def start_lead(self, settings, names, *flags):
        self.start_coordinator(settings, f"--shards={','.join(names)}", *flags)

    def restart_lead(self, *flags):
        self.coordinator = self.start(
            "coordinator.log", COORDINATOR, "serve", f"--run_dir={self.folder / 'coordinator'}",
            f"--listen={self.address}", "--exit_when_finished", "--http=off", *flags)
        return self.coordinator

    def shard_command(self, name, *flags, run_dir=None, lead=None, listen="127.0.0.1:0"):
        return [COORDINATOR, "serve", f"--run_dir={self.folder / (run_dir or name)}",
                f"--lead={lead or self.address}", f"--shard={name}", f"--listen={listen}",
                f"--address_file={self.folder / (name + '.address')}", "--exit_when_finished",
                "--http=off", *flags]

    def start_shard(self, name, *flags, variables=None, patience_s=DEADLINE_S, **options):
        address = self.folder / f"{name}.address"
        address.unlink(missing_ok=True)
        shard = self.start(f"{name}.log", *self.shard_command(name, *flags, **options),
                           variables=variables)
        wait_until(lambda: address.exists() or shard.child.poll() is not None,
                   f"the shard {name} listens", patience_s)
        return shard

    def published(self, *who):
        """(fragment, round) -> hash, over the records of those coordinators."""
        return {(row["fragment"], row["round"]): row["published_hash"]
                for name in who for row in json_lines(self.folder / name / "rounds.jsonl")}
