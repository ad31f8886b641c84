"""fleet.yaml: what it says, and how its faults are told."""

import os
from unittest import mock

import tools
from pretended import GOOD, Scene

from causeway.fleet._file import FleetFileError, read_fleet


class FileTest(Scene):
    def faults(self, text):
        with self.assertRaises(FleetFileError) as raised:
            self.fleet(text)
        return str(raised.exception).replace(f"{self.folder}/fleet.yaml:", "")

    def test_a_good_file_says_who_goes_where(self):
        fleet = self.fleet()
        self.assertEqual([site.name for site in fleet.sites], ["berlin", "oslo-1", "oslo-2"])
        self.assertEqual(fleet.cluster("oslo-1"), "causeway-first-oslo-1")
        self.assertEqual((fleet.sites[0].place.spot, fleet.sites[1].place.spot), (True, False))
        self.assertEqual((fleet.join, fleet.data, fleet.model),
                         (str(self.folder / "operator"), str(self.folder / "shards"), self.folder / "model"))
        self.assertEqual(fleet.budget_tokens, 1_000_000)

    def test_every_fault_is_named_with_line_and_key(self):
        self.assertEqual(self.faults("""\
name: First fleet
coordinator: {join: causeway://a:1/b/c/d.e, adress: x}
places:
  Berlin: {spott: true}
  oslo: {count: 0, spot: often, accelerators: [H100]}
budget_tokens: many
data: nowhere
wheel: wheels
colour: red
"""), f"""\
1: name: expected 1 .. 20 small letters and digits, a letter first, got "First fleet"
2: coordinator.adress: is not known here; there are join, launch, address
2: coordinator.join: a line is a secret: put it into a file for yourself alone (chmod 600), and give @FILE
4: places.Berlin.spott: is not known here; there are infra, accelerators, cpus, memory, count, spot
4: places.Berlin: expected another name: 1 .. 31 small letters, digits and dashes, a letter first, and not coordinator
5: places.oslo.accelerators: expected GPUs, as H100:8, or a mapping of what will do, got a list
5: places.oslo.count: expected a whole number, 1 .. 64, got "0"
5: places.oslo.spot: expected true or false, got "often"
6: budget_tokens: expected a number, got "many"
7: data: there is no {self.folder}/nowhere: expected shards, or a bucket's URL
9: colour: is not known here; there are name, coordinator, places, budget_tokens, model, wheel, data, command, setup, workdir""")

    def test_a_home_is_expanded_and_numbers_are_read_as_people_write_them(self):
        with mock.patch.dict(os.environ, HOME="/home/me"):
            for join, path in (("~/x", "/home/me/x"), ("'@~/x'", "@/home/me/x"), ("'@x'", f"@{self.folder}/x")):
                self.assertEqual(self.fleet(GOOD.replace("./operator", join)).join, path)
        for number in ("2e9", "2e+9", "2E9", "2_000_000_000", "2000000000"):
            self.assertEqual(self.fleet(GOOD.replace("1_000_000", number)).budget_tokens, 2 * 10**9)

    def test_a_line_is_told_to_nobody_however_it_is_written(self):
        for change, said in ((("./operator", """'"causeway://a:1/b/c/d.secret"'"""), "3: coordinator.join: a line is a"),
                             (("./operator", "' causeway://a:1/b/c/d.secret'"), "3: coordinator.join: a line is a"),
                             (("203.0.113.5:7070", "causeway://a:1/b/c/d.secret"),
                              '4: coordinator.address: expected HOST:PORT, got "causeway://..."')):
            told = self.faults(GOOD.replace(*change))
            self.assertIn(said, told)
            self.assertNotIn("secret", told.replace("is a secret", ""))

    def test_odd_yaml_is_a_fault_with_line_and_key(self):
        for change, said in (
                (("H100:8", "{[a]: 1}"), "6: places.berlin.accelerators: "),
                (("H100:8", "!!int many"), "6: places.berlin.accelerators: "),
                (("H100:8", "&a {b: *a}"), "6: places.berlin.accelerators: "),
                (("H100:8", "!!python/name:os.system ''"), "6: places.berlin.accelerators: "),
                (("data: shards", "data: ~nobody-of-that-name/x"), "9: data: "),
                (("data: shards", f"data: {'x' * 5000}"), "9: data: "),
                (("data: shards", 'data: "a\\0b"'), "9: data: "),
                (("name: first", "name: first\n[a, b]: c"), "2: the file: expected a name, got a list"),
                (("data: shards", "data: " + "[" * 5000), "is no YAML")):
            with self.subTest(change):
                self.assertIn(said, self.faults(GOOD.replace(*change)))

    def test_what_is_missing_or_too_much_is_named(self):
        for change, said in (
                (("name: first\n", ""), "1: name: is missing"),
                (("budget_tokens: 1_000_000\n", ""), "1: budget_tokens: is missing"),
                (("data: shards\n", ""), "1: data: is missing: shards"),
                (("wheel: wheels\n", ""), "1: wheel: is missing, and there is no"),
                (("  join: ./operator\n", ""), "3: coordinator: expected either join"),
                (("  join: ./operator\n", "  join: ./operator\n  launch: {config: run.textproto}\n"),
                 "3: coordinator: expected either join"),
                (("  join: ./operator\n", "  launch: {}\n"), "3: coordinator.launch.config: is missing"),
                (("  join: ./operator", "  join: [a]"), "3: coordinator.join: expected text, got a list"),
                (("name: first", "name: first\nname: second"), "2: name: is there twice"),
                (("places:", "places: here\nelsewhere:"), "5: places: expected a mapping"),
                (("  berlin:", "  oslo-2:"), "7: places.oslo: there would be two sites oslo-2"),
                (("count: 2", "count: 64"), "6: places: expected 1 .. 64 sites, got 65"),
                (("data: shards", "data: ["), "is no YAML"),
                ((GOOD, ""), "is empty"), ((GOOD, "a list"), "expected a mapping, got")):
            with self.subTest(change):
                self.assertIn(said, self.faults(GOOD.replace(*change)))
        with self.assertRaisesRegex(FleetFileError, "cannot be read"):
            read_fleet(self.folder / "none.yaml")


if __name__ == "__main__":
    tools.main()
