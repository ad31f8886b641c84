"""deploy/compose without an engine: what is named is there, with a standby and without."""

import re
import unittest

from tools import ROOT, flags_of, main

try:
    import yaml
except ImportError:
    yaml = None

FOLDER = ROOT / "deploy/compose"
LAYERS = (["docker-compose.yml"], ["docker-compose.yml", "docker-compose.standby.yml"])
PROGRAMS = ("causeway-coordinator", "causeway-worker", "causewayctl")


def merged(names):
    """As compose does it: lists of volumes and environments grow, all else is replaced."""
    services, volumes = {}, set()
    for name in names:
        content = yaml.safe_load((FOLDER / name).read_text())
        volumes |= set(content["volumes"])
        for service, settings in content["services"].items():
            known = services.setdefault(service, {"volumes": []})
            grown = known["volumes"] + settings.get("volumes", [])
            environment = {**known.get("environment", {}), **settings.get("environment", {})}
            known.update(settings)
            known["volumes"] = grown
            known["environment"] = environment
    return services, volumes


def words(settings):
    """Of a service's command, in order."""
    parts = [*(settings.get("entrypoint") or []), *(settings.get("command") or [])]
    return [word for part in parts for word in str(part).split()]


class ComposeFilesTest(unittest.TestCase):
    def setUp(self):
        if yaml is None:
            self.skipTest("python3-yaml not installed (deploy/packages_deploy)")

    def test_volumes_and_services_are_there(self):
        for names in LAYERS:
            services, volumes = merged(names)
            for service, settings in services.items():
                for mount in settings["volumes"]:
                    source = mount.split(":")[0]
                    if re.fullmatch(r"[a-z][a-z-]*", source):
                        self.assertIn(source, volumes, service)
                for other in settings.get("depends_on", {}):
                    self.assertIn(other, services, service)

    def test_programs_have_the_flags(self):
        for names in LAYERS:
            for service, settings in merged(names)[0].items():
                said = words(settings)
                program = next((word for word in said if word in PROGRAMS), None)
                for word in said[said.index(program):] if program else []:
                    if re.match(r"--[a-z]", word):
                        self.assertIn(word.split("=")[0], flags_of(program), service)

    def test_coordinators_that_share_a_run_find_each_other_and_workers_find_them(self):
        services = merged(LAYERS[1])[0]
        flags = {service: dict(word.split("=", 1) for word in words(settings) if "=" in word)
                 for service, settings in services.items()}
        members = {service for service, own in flags.items() if "--initial-cluster" in own}
        self.assertEqual(len(members), 3)
        for member in members:
            own = flags[member]
            self.assertEqual(own["--name"], member)
            self.assertEqual(own["--advertise-client-urls"], f"http://{member}:2379")
            self.assertEqual(own["--initial-advertise-peer-urls"], f"http://{member}:2380")
            self.assertEqual(set(own["--initial-cluster"].split(",")),
                             {f"{name}=http://{name}:2380" for name in members})
            self.assertEqual(services[member]["networks"], ["etcd"])
        sharing = {service for service, own in flags.items() if "--etcd" in own}
        self.assertEqual(sharing, {"coordinator", "standby"})
        different = ("--advertise", "--standby_name")
        common = {flag: value for flag, value in flags["coordinator"].items() if flag not in different}
        for service in sharing:
            own = flags[service]
            self.assertEqual(set(own["--etcd"].split(",")), {f"{name}:2379" for name in members})
            self.assertEqual(own["--advertise"], f"{service}:7070")
            self.assertEqual(own["--standby_name"], service)
            self.assertEqual({flag: own.get(flag) for flag in common}, common)
            # One name that has the addresses of both; of several names they would stay the first ones.
            self.assertEqual(services[service]["networks"],
                             {"default": {"aliases": ["coordinators"]}, "etcd": None})
            self.assertEqual(own["--authority"], "/authority")
            self.assertIn("authority:/authority:ro", services[service]["volumes"])
        for service, own in flags.items():
            if service.startswith("worker-"):
                self.assertEqual(own["--coordinator"], '"$$CAUSEWAY_COORDINATOR"')
                known = services[service]["environment"]["CAUSEWAY_COORDINATOR"]
                self.assertEqual(known, "coordinators:7070")
        self.assertEqual(flags["ctl"]["--coordinator"], "coordinators:7070")

    def test_everybody_is_invited_under_his_name_into_his_volume(self):
        for names in LAYERS:
            services = merged(names)[0]
            invites = " ".join(words(services["invitations"]))
            invited = dict(reversed(who.split("/")) for who in
                           re.search(r"for who in ([a-z/ ]+);", invites)[1].split())
            of = {name: f"worker-{name}" if role == "worker" else name for name, role in invited.items()}
            self.assertEqual(set(of.values()), {service for service in services
                                                if service.startswith("worker-") or service == "ctl"})
            for name, service in of.items():
                self.assertIn(f"{service}:/for/{name}", services["invitations"]["volumes"])
                self.assertIn(f"{service}:/var/lib/causeway", services[service]["volumes"])
                self.assertIn("--join=@/var/lib/causeway/line", words(services[service]))
                # The authority's key is in none of them.
                self.assertFalse([mount for mount in services[service]["volumes"]
                                  if mount.startswith(("coordinator:", "authority:"))])


if __name__ == "__main__":
    main()
