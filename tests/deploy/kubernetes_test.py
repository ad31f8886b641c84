"""deploy/kubernetes, without a cluster: everything that is named is there and fits together."""

import base64
import copy
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import tools
from tools import BUILD, ROOT, run

try:
    import yaml

    import manifests
except ImportError:
    yaml = None

# A user brings these along.
OUTSIDE = ("causeway-text",)
CERTIFICATES = {
    "one-cluster": (["coordinator", "--host", "causeway-coordinator"], ["worker", "causeway-worker-0"],
                    ["worker", "causeway-worker-1"]),
    "gpu-site": (["worker", "site-a"],),
    "standby-cluster": (["coordinator", "--host", "causeway-coordinator", *(
        f"--host=causeway-coordinator-{i}.causeway-coordinator" for i in (0, 1))],
        ["operator", "standby"], ["worker", "causeway-worker-0"], ["worker", "causeway-worker-1"]),
}


@functools.cache
def flags_of(program):
    return run(BUILD / "bin" / program, "--help")[1]


class KubernetesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if yaml is None:
            raise unittest.SkipTest("python3-yaml not installed (deploy/packages_deploy)")
        folder = tempfile.TemporaryDirectory(prefix="causeway_kubernetes_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name) / "kubernetes"
        shutil.copytree(ROOT / "deploy/kubernetes", cls.folder)
        for overlay, wanted in CERTIFICATES.items():
            for arguments in (["init"], *wanted):
                subprocess.run([ROOT / "deploy/make_certificates", *arguments],
                               cwd=cls.folder / "overlays" / overlay, check=True,
                               stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        cls.images = {"causeway": manifests.Image(ROOT / "deploy/docker/Dockerfile"),
                      "etcd": manifests.Image(ROOT / "deploy/compose/Dockerfile.etcd")}

    def problems(self, objects):
        return list(manifests.check(objects, self.images, OUTSIDE, flags_of))

    def objects(self):
        return copy.deepcopy(manifests.compose(self.folder / "overlays/one-cluster"))

    def test_every_overlay_fits_together(self):
        overlays = sorted(path.name for path in (self.folder / "overlays").iterdir())
        self.assertEqual(overlays, sorted(CERTIFICATES))
        for overlay in overlays:
            objects = manifests.compose(self.folder / "overlays" / overlay)
            self.assertGreater(len(objects), 5)
            self.assertEqual(self.problems(objects), [], overlay)

    def test_every_file_is_named_by_a_kustomization(self):
        for path in (ROOT / "deploy/kubernetes").rglob("*.yaml"):
            if path.name != "kustomization.yaml":
                named = yaml.safe_load((path.parent / "kustomization.yaml").read_text())["resources"]
                self.assertIn(path.name, named)

    def test_what_kustomize_makes_of_them_fits_together(self):
        tools.needs("kubectl")
        made = {}
        for overlay in CERTIFICATES:
            status, said = run("kubectl", "kustomize", self.folder / "overlays" / overlay,
                               env={**os.environ, "HOME": str(self.folder)})
            self.assertEqual(status, 0, said)
            objects = made[overlay] = [item for item in yaml.safe_load_all(said) if item]
            self.assertEqual(self.problems(objects), [], overlay)
            for item in objects:
                if item["kind"] != "Namespace":
                    self.assertEqual(item["metadata"]["namespace"], "causeway")
            secrets = manifests.named(objects, "Secret")
            key = secrets["causeway-worker-certificates"]["data"]["causeway-worker-0.key.pem"]
            self.assertIn(b"PRIVATE KEY", base64.b64decode(key))
        for _, _, spec in [pod for objects in made.values() for pod in manifests.pods(objects)]:
            self.assertTrue(spec["containers"][0]["image"].startswith("registry.example.org/"))
        shared = manifests.named(made["standby-cluster"], "StatefulSet")
        worker = shared["causeway-worker"]["spec"]["template"]["spec"]["containers"][0]
        known = {item["name"]: item.get("value") for item in worker["env"]}["COORDINATOR"]
        # The name of both pods: a list would be looked up once, and pods change their addresses.
        self.assertEqual(known, f"{shared['causeway-coordinator']['spec']['serviceName']}:7070")
        shared["causeway-etcd"]["spec"]["replicas"] = 5
        problems = self.problems(made["standby-cluster"])
        self.assertIn("are not the members of etcd", problems[0])
        self.assertIn("are not its pods", problems[1])
        worker = manifests.named(made["gpu-site"], "StatefulSet")["causeway-worker"]
        container = worker["spec"]["template"]["spec"]["containers"][0]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 1)
        self.assertIn("--id=site-a", container["args"])
        self.assertIn({"name": "COORDINATOR", "value": "train.example.org:7070"}, container["env"])

    def test_kubernetes_knows_every_field(self):
        tools.needs("kubectl")
        if shutil.which("kubernetes-validate") is None:
            self.skipTest("kubernetes-validate not installed (PyPI)")
        for overlay in CERTIFICATES:
            made = self.folder / f"{overlay}.yaml"
            status, said = run("kubectl", "kustomize", "-o", made, self.folder / "overlays" / overlay,
                               env={**os.environ, "HOME": str(self.folder)})
            self.assertEqual(status, 0, said)
            status, said = run("kubernetes-validate", "--strict", made)
            self.assertEqual(status, 0, said)

    def test_the_configuration_is_one(self):
        for overlay in ("one-cluster", "standby-cluster"):
            status, said = run(BUILD / "bin/causeway-coordinator", "check-config",
                               f"--config={self.folder}/overlays/{overlay}/run.textproto")
            self.assertEqual(status, 0, said)

    def test_what_does_not_fit_is_found(self):
        def worker(objects):
            return manifests.named(objects, "StatefulSet")["causeway-worker"]["spec"]

        def container(objects):
            return worker(objects)["template"]["spec"]["containers"][0]

        def drop(kind, name):
            def change(objects):
                objects[:] = [item for item in objects
                              if (item["kind"], item["metadata"]["name"]) != (kind, name)]
            return change

        for change, saying in (
                (drop("Secret", "causeway-worker-certificates"), "no Secret causeway-worker-cert"),
                (drop("ConfigMap", "causeway-run"), "no ConfigMap causeway-run"),
                (drop("Service", "causeway-coordinator"), "no Service causeway-coordinator"),
                (drop("PersistentVolumeClaim", "causeway-shards"), "no PersistentVolumeClaim"),
                (drop("NetworkPolicy", "causeway-worker"), "no NetworkPolicy covers"),
                (lambda o: worker(o).update(replicas=3), "causeway-worker-2.cert.pem"),
                (lambda o: container(o)["livenessProbe"]["httpGet"].update(port="http"), "asks port http"),
                (lambda o: container(o)["ports"][0].update(containerPort=9100), "not one of the image's"),
                (lambda o: container(o)["volumeMounts"].pop(2), "nothing puts /certificates/ca.pem"),
                (lambda o: container(o)["args"].append("--no_such_flag=1"), "no flag --no_such_flag"),
                (lambda o: container(o)["env"].pop(0), "no POD_NAME"),
                (lambda o: container(o)["securityContext"].update(readOnlyRootFilesystem=False),
                 "more rights"),
                (lambda o: worker(o)["template"]["spec"]["securityContext"].update(runAsUser=0),
                 "another user"),
                (lambda o: worker(o)["template"]["spec"]["volumes"][1]["secret"].pop("defaultMode"),
                 "can be read by others"),
                (lambda o: worker(o)["selector"].update(matchLabels={"app": "other"}),
                 "does not select its own pods")):
            objects = self.objects()
            change(objects)
            self.assertTrue(any(saying in problem for problem in self.problems(objects)),
                            (saying, self.problems(objects)))


if __name__ == "__main__":
    tools.main()
