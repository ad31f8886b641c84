"""deploy/kubernetes, without a cluster: Helm renders it, Kubernetes knows all of it, and it fits together."""

import unittest

import tools
from tools import BUILD, ROOT, flags_of, folder_of, run

if __name__ == "__main__":
    tools.go_on_with_validators()

import helm_python  # noqa: E402
import kubernetes_validate  # noqa: E402
import yaml  # noqa: E402

import manifests  # noqa: E402

CHART = ROOT / "deploy/kubernetes"
KUBERNETES = "1.37"
# A user makes these, and Secrets: lines and an authority, or folders that make_certificates makes.
CERTIFICATE = ("ca.pem", "cert.pem", "key.pem")
OUTSIDE = {"causeway-text": (), "token-shards": (), "first-authority": ("ca.pem", "ca.key"), **{
    f"first-{who}": (*CERTIFICATE, "line") for who in ("coordinator", "operator", "worker-a", "worker-b")}}
ELSEWHERE = {"enabled": False, "address": "train.example.org:7443", "cidr": "198.51.100.7/32"}
RELEASES = {
    "one cluster": {"workers": ["a", "b"]},
    "a run that others join": {"coordinator": {"sites": ["203.0.113.0/24"]}},
    "standby": {"workers": ["a", "b"], "coordinator": {"standby": True, "sites": ["203.0.113.0/24"]}},
    "a site": {"workers": ["a"], "worker": {"gpus": 8}, "coordinator": ELSEWHERE,
               "shards": {"claim": "token-shards"}},
}
RELEASES.update({f"{name}, by certificates": {**values, "invitations": False}
                 for name, values in RELEASES.items()})


def rendered(values):
    files = helm_python.Chart.load(str(CHART)).render(values=values, name="first", namespace="causeway")
    return [item for _, text in sorted(files.items()) for item in yaml.safe_load_all(text) if item]


def named(objects, kind, name):
    return manifests.named(objects, kind)[f"first-{name}"]


def container(objects, name):
    return named(objects, "StatefulSet", name)["spec"]["template"]["spec"]["containers"][0]


class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.images = {"causeway": manifests.Image(ROOT / "deploy/docker/Dockerfile"),
                      "etcd": manifests.Image(ROOT / "deploy/compose/Dockerfile.etcd")}

    def problems(self, objects):
        return list(manifests.check(objects, self.images, OUTSIDE, flags_of))

    def test_helm_has_nothing_to_complain_of(self):
        for name, values in RELEASES.items():
            found = helm_python.lint(str(CHART), values=values, strict=True, kube_version=KUBERNETES)
            self.assertEqual(found["errors"], [], name)
            self.assertEqual([message for message in found["messages"] if message["severity"] > 1], [], name)

    def test_kubernetes_knows_every_field_and_every_release_fits_together(self):
        for name, values in RELEASES.items():
            objects = rendered(values)
            self.assertGreaterEqual(len(objects), 3)
            for item in objects:
                kubernetes_validate.validate(item, KUBERNETES, strict=True)
            self.assertEqual(self.problems(objects), [], name)

    def test_the_configuration_is_one(self):
        path = folder_of(self) / "run.textproto"
        path.write_text(named(rendered({}), "ConfigMap", "coordinator")["data"]["run.textproto"])
        status, said = run(BUILD / "bin/causeway-coordinator", "check-config", f"--config={path}")
        self.assertEqual(status, 0, said)

    def test_every_worker_has_its_own_line_alone(self):
        objects = rendered(RELEASES["one cluster"])
        self.assertIn("--tls=own", container(objects, "coordinator")["args"])
        for name in ("a", "b"):
            worker = container(objects, f"worker-{name}")
            self.assertEqual(worker["env"], [{"name": "CAUSEWAY_JOIN", "valueFrom": {
                "secretKeyRef": {"name": f"first-worker-{name}", "key": "line"}}}])
            self.assertIn("--identity=/var/lib/causeway/identity", worker["args"])

    def test_coordinators_that_take_over_from_each_other_have_one_authority(self):
        self.assertIn("--authority=/certificates", container(rendered(RELEASES["standby"]), "coordinator")["args"])

    def test_every_worker_has_its_own_certificate_alone(self):
        objects = rendered(RELEASES["one cluster, by certificates"])
        for name in ("a", "b"):
            self.assertIn(f"--id={name}", container(objects, f"worker-{name}")["args"])
            pod = named(objects, "StatefulSet", f"worker-{name}")["spec"]["template"]["spec"]
            self.assertEqual([volume["secret"]["secretName"] for volume in pod["volumes"]
                              if "secret" in volume], [f"first-worker-{name}"])

    def test_a_site_calls_its_coordinator_and_nobody_else(self):
        objects = rendered(RELEASES["a site"])
        worker = container(objects, "worker-a")
        self.assertIn("--coordinator=train.example.org:7443", worker["args"])
        self.assertEqual(worker["resources"]["limits"]["nvidia.com/gpu"], 8)
        rules = named(objects, "NetworkPolicy", "worker")["spec"]["egress"]
        self.assertEqual(rules[0], {"to": [{"ipBlock": {"cidr": "198.51.100.7/32"}}], "ports": [{"port": 7443}]})
        self.assertEqual({item["kind"] for item in objects}, {"StatefulSet", "Service", "NetworkPolicy"})

    def test_other_sites_come_in_by_a_service_of_their_own(self):
        objects = rendered(RELEASES["standby"])
        for index in (0, 1):
            service = named(objects, "Service", f"coordinator-{index}")["spec"]
            self.assertEqual((service["type"], service["loadBalancerSourceRanges"], len(service["ports"])),
                             ("LoadBalancer", ["203.0.113.0/24"], 1))

    def test_values_that_cannot_be_are_refused(self):
        for values, saying in (
                ({"wokers": ["a"]}, "wokers"),
                ({"workers": ["Site A"]}, "does not match pattern"),
                ({"workers": ["a"], "coordinator": {"enabled": False}}, "coordinator.address: HOST:PORT"),
                ({"workers": ["a"], "coordinator": {**ELSEWHERE, "cidr": ""}}, "coordinator.cidr: the addr"),
                ({"coordinator": {"address": "train.example.org"}}, "does not match pattern")):
            with self.assertRaises(helm_python.HelmError) as refused:
                rendered(values)
            self.assertIn(saying, str(refused.exception))

    def test_what_does_not_fit_is_found(self):
        def worker(objects):
            return named(objects, "StatefulSet", "worker-a")["spec"]

        def drop(kind, name):
            def change(objects):
                objects[:] = [item for item in objects
                              if (item["kind"], item["metadata"]["name"]) != (kind, f"first-{name}")]
            return change

        for change, saying in (
                (drop("ConfigMap", "coordinator"), "nothing puts /etc/causeway/run.textproto"),
                (drop("Service", "coordinator"), "no Service first-coordinator"),
                (lambda o: named(o, "StatefulSet", "etcd")["spec"].update(replicas=5), "are not the members"),
                (lambda o: container(o, "worker-a")["args"].append("--no_such_flag=1"), "no flag --no_such_flag"),
                (lambda o: worker(o)["template"]["spec"]["securityContext"].update(runAsUser=0), "another user"),
                (lambda o: worker(o)["template"]["spec"]["volumes"][1]["secret"].pop("defaultMode"),
                 "can be read by others")):
            objects = rendered(RELEASES["standby, by certificates"])
            change(objects)
            self.assertTrue(any(saying in problem for problem in self.problems(objects)),
                            (saying, self.problems(objects)))


if __name__ == "__main__":
    tools.main()
