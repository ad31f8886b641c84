"""Deltas in memory of coordinators that share a run by etcd, as real processes: none is lost."""

import shutil

from cluster import SIGKILL, SIGTERM, wait_until
from etcd import main
from machines import Machines, SharedRunTest, hashes

ON_DISK = "all deltas are on the disk"


class MemoryTest(SharedRunTest):
    def test_machines_that_are_rebooted_in_turn_lose_no_delta_in_memory(self):
        with Machines() as machines:
            processes = list(machines.both(in_memory=True))
            workers = machines.start_workers()
            published = {}
            for leader, step in [(0, 20), (1, 40), (0, 60)]:
                other = 1 - leader
                wait_until(lambda: "deltas are kept in memory" in processes[leader].log(),
                           "deltas are in memory")
                machines.wait_for_step("worker-0", step)
                machines.reboot(leader, processes[leader])
                published |= hashes(machines.run_dir(leader))
                # It is in the set still, has lost deltas, and must not lead.
                processes[leader] = machines.share(leader)
                wait_until(lambda: "listens on" in processes[other].log(), "the other one serves")
                wait_until(lambda: "in sync are" in processes[other].log(), "both are in sync")
                log = processes[leader].log()
                self.assertIn("has lost deltas that were in memory", log)
                self.assertNotIn("listens on", log)
            found = self.end(machines, workers, 1, processes[1])
            self.assertEqual({key: found[key] for key in published}, published)

    def test_a_copy_whose_memory_went_while_it_followed_does_not_lead(self):
        with Machines() as machines:
            first, second = machines.both(in_memory=True)
            workers = machines.start_workers()
            wait_until(lambda: "deltas are kept in memory" in first.log(), "deltas are in memory")
            machines.wait_for_step("worker-0", 20)
            # It is whole as it begins to follow, and within the lease of the leader not any more.
            first.signal(SIGKILL)
            first.wait()
            shutil.rmtree(machines.memory(1))
            wait_until(lambda: "nobody leads, and" in second.log(), "it does not lead")
            self.assertNotIn("listens on", second.log())
            again = machines.share(0)
            wait_until(lambda: "a new copy begins" in second.log(), "it begins anew")
            self.end(machines, workers, 0, again)

    def test_a_machine_that_is_alone_may_be_rebooted(self):
        with Machines() as machines:
            first, second = machines.both(in_memory=True)
            workers = machines.start_workers()
            machines.wait_for_step("worker-0", 20)
            # It may have been alone for a moment before it had a standby.
            before = first.log().count(ON_DISK)
            second.signal(SIGKILL)
            wait_until(lambda: first.log().count(ON_DISK) > before, "it is alone")
            machines.wait_for_step("worker-0", machines.steps("worker-0") + 10)
            machines.reboot(0, first)
            again = machines.share(0)
            self.end(machines, workers, 0, again)

    def test_machines_that_have_both_lost_their_memory_wait_and_say_so(self):
        with Machines() as machines:
            processes = machines.both(in_memory=True)
            workers = machines.start_workers()
            wait_until(lambda: "deltas are kept in memory" in processes[0].log(), "in memory")
            machines.wait_for_step("worker-0", 20)
            for node in (1, 0):
                machines.reboot(node, processes[node])
            again = [machines.share(node) for node in range(2)]
            for process in again:
                wait_until(lambda: "nobody leads, and" in process.log(), "it waits")
                process.signal(SIGTERM)
                self.assertEqual(process.wait(), 0, process.log())
            for worker in workers:
                worker.signal(SIGKILL)


if __name__ == "__main__":
    main()
