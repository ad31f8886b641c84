"""Kubernetes manifests without a cluster: composes kustomizations, and finds what does not fit together.

`compose` knows of kustomize what needs no merging (resources, generators, namespaces, replicas); where
kubectl is installed the test looks at what that makes as well.
"""

import pathlib
import re

import yaml

WORKLOADS = ("StatefulSet", "Job")
# For which a coordinator may merge rounds again before it listens.
LONGEST_RECOVERY_S = 3600


def compose(folder):
    """The objects of a kustomization, and of all that it names. Raises for what is not there."""
    folder = pathlib.Path(folder)
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    objects = []
    for name in kustomization.get("resources", []):
        path = folder / name
        if path.is_dir():
            objects += compose(path)
        else:
            objects += [item for item in yaml.safe_load_all(path.read_text()) if item]
    for kind, key in (("ConfigMap", "configMapGenerator"), ("Secret", "secretGenerator")):
        for generator in kustomization.get(key, []):
            data = {}
            for entry in generator["files"]:
                name, _, source = entry.rpartition("=")
                data[name or pathlib.Path(source).name] = (folder / source).read_text()
            objects.append({"kind": kind, "metadata": {"name": generator["name"]}, "data": data})
    for change in kustomization.get("replicas", []):
        matching = [item for item in objects if item["kind"] == "StatefulSet"
                    and item["metadata"]["name"] == change["name"]]
        if not matching:
            raise ValueError(f"{folder}: replicas of {change['name']}, which is not there")
        matching[0]["spec"]["replicas"] = change["count"]
    return objects


class Image:
    """What the Dockerfile promises."""

    def __init__(self, dockerfile):
        text = pathlib.Path(dockerfile).read_text()
        self.ports = {int(port) for port in re.search(r"^EXPOSE (.*)$", text, re.M).group(1).split()}
        self.user = int(re.search(r"^USER (\d+)", text, re.M).group(1))


def named(objects, kind):
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def fits(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def pods(objects):
    """(name, labels, spec) of everything that makes pods."""
    return [(item["metadata"]["name"], item["spec"]["template"]["metadata"]["labels"],
             item["spec"]["template"]["spec"]) for item in objects if item["kind"] in WORKLOADS]


def port_names(spec):
    return {port["name"]: port["containerPort"] for container in spec["containers"]
            for port in container.get("ports", [])}


def check_volumes(objects, workload, spec, outside):
    claims = {claim["metadata"]["name"] for claim in
              workload["spec"].get("volumeClaimTemplates", [])}
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in claims | set(volumes):
                yield f"volume {mount['name']} is mounted, and is not there"
    for volume in volumes.values():
        for field, key, kind in (("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret"),
                                 ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim")):
            if field in volume:
                wanted = volume[field][key]
                if wanted not in named(objects, kind) and wanted not in outside:
                    yield f"there is no {kind} {wanted}"
        if "secret" in volume and volume["secret"].get("defaultMode", 0o644) & 0o007:
            yield f"secret {volume['secret']['secretName']}: its keys can be read by others"


def files_of(objects, spec):
    """Every file that configurations and secrets put into a container, by its path."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    found = {}
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            for field, key, kind in (("configMap", "name", "ConfigMap"), ("secret", "secretName", "Secret")):
                if field in volume:
                    source = named(objects, kind).get(volume[field][key], {})
                    for name in source.get("data", {}):
                        found[f"{mount['mountPath']}/{name}"] = mount["mountPath"]
    return found


def check_container(objects, workload, spec, container, images, known_flags):
    name = workload["metadata"]["name"]
    ports = port_names(spec)
    # registry.example.org/causeway:0.1.0
    kind = container["image"].rpartition("/")[2].partition(":")[0]
    if kind not in images:
        yield f"{container['image']} is none of {sorted(images)}"
        return
    image = images[kind]
    for port in ports.values():
        if port not in image.ports:
            yield f"port {port} is not one of the image's"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container and container[probe]["httpGet"]["port"] not in ports:
            yield f"{probe} asks port {container[probe]['httpGet']['port']}, which has no name here"
    yield from check_rights(spec, container, image)
    environment = {item["name"] for item in container.get("env", [])}
    for argument in container["args"]:
        for variable in re.findall(r"\$\((\w+)\)", argument):
            if variable not in environment:
                yield f"{argument}: there is no {variable} in its environment"
    if kind != "causeway":
        return
    startup = container.get("startupProbe")
    if "serve" in container["args"] and (
            startup is None or
            startup.get("periodSeconds", 10) * startup.get("failureThreshold", 3) < LONGEST_RECOVERY_S):
        yield "a coordinator that recovers for long would be killed, and begin again"
    program, command, *flags = container["args"]
    listened = set()
    provided = files_of(objects, spec)
    for flag in flags:
        option, _, value = flag.partition("=")
        if known_flags is not None and option not in known_flags(program):
            yield f"{program} {command} has no flag {option}"
        if option in ("--listen", "--http", "--metrics"):
            listened.add(int(value.rpartition(":")[2]))
        if option in ("--config", "--tls_ca", "--tls_cert", "--tls_key", "--lead_tls_cert",
                      "--lead_tls_key", "--standby_cert", "--standby_key"):
            for index in range(workload["spec"].get("replicas", 1)):
                path = value.replace("$(POD_NAME)", f"{name}-{index}")
                if path not in provided:
                    yield f"{option}: nothing puts {path} there"
    if listened != set(ports.values()):
        yield f"listens to {sorted(listened)} and declares {sorted(ports.values())}"


def check_rights(spec, container, image):
    if spec["securityContext"].get("runAsUser") != image.user:
        yield f"runs as another user than the image's, {image.user}"
    if not spec["securityContext"].get("runAsNonRoot"):
        yield "may run as root"
    own = container.get("securityContext", {})
    if (own.get("allowPrivilegeEscalation") is not False or not own.get("readOnlyRootFilesystem")
            or own.get("capabilities") != {"drop": ["ALL"]}):
        yield "has more rights than it needs"


def hosts_of(objects, component, port):
    """POD.SERVICE:PORT of every pod of the StatefulSets with that component."""
    return {f"{item['metadata']['name']}-{index}.{item['spec']['serviceName']}:{port}"
            for item in objects if item["kind"] == "StatefulSet"
            and item["metadata"]["labels"]["app.kubernetes.io/component"] == component
            for index in range(item["spec"].get("replicas", 1))}


def check_shared_run(objects):
    """Coordinators that share a run name the members of etcd, which name each other."""
    for item in objects:
        if item["kind"] != "StatefulSet":
            continue
        name = item["metadata"]["name"]
        container = item["spec"]["template"]["spec"]["containers"][0]
        environment = {entry["name"]: entry.get("value", "") for entry in container.get("env", [])}
        if "--etcd=$(ETCD)" in container["args"]:
            if set(environment["ETCD"].split(",")) != hosts_of(objects, "etcd", 2379):
                yield f"{name}: {environment['ETCD']} are not the members of etcd"
            if f"--advertise=$(POD_NAME).{item['spec']['serviceName']}:7070" not in container["args"]:
                yield f"{name}: its pods advertise no names of theirs"
        if "--initial-cluster=$(MEMBERS)" in container["args"]:
            members = {f"{host.partition('.')[0]}=http://{host}"
                       for host in hosts_of(objects, "etcd", 2380)}
            if set(environment["MEMBERS"].split(",")) != members:
                yield f"{name}: {environment['MEMBERS']} are not its pods"


def check(objects, images, outside=(), known_flags=None):
    """Yields what does not fit, one sentence each. `images`: by the last part of
    their names. `outside`: names of what a user brings along.
    known_flags(program): the text that has every flag of a program."""
    services = named(objects, "Service")
    for workload in (item for item in objects if item["kind"] in WORKLOADS):
        where = f"{workload['kind']} {workload['metadata']['name']}"
        template = workload["spec"]["template"]
        selector = workload["spec"].get("selector", {}).get("matchLabels", {})
        if not fits(selector, template["metadata"]["labels"]):
            yield f"{where}: its selector does not select its own pods"
        service = workload["spec"].get("serviceName")
        if service is not None and service not in services:
            yield f"{where}: there is no Service {service}"
        for problem in check_volumes(objects, workload, template["spec"], outside):
            yield f"{where}: {problem}"
        for container in template["spec"]["containers"]:
            for problem in check_container(objects, workload, template["spec"], container, images,
                                           known_flags):
                yield f"{where}: {problem}"
    yield from check_shared_run(objects)
    for name, service in services.items():
        selected = [spec for _, labels, spec in pods(objects)
                    if fits(service["spec"]["selector"], labels)]
        if not selected:
            yield f"Service {name} selects no pods"
        for port in service["spec"]["ports"]:
            for spec in selected:
                if port_names(spec).get(port["targetPort"]) != port["port"]:
                    yield f"Service {name}: its port {port['targetPort']} is not the pods'"
    for name, policy in named(objects, "NetworkPolicy").items():
        selected = [spec for _, labels, spec in pods(objects)
                    if fits(policy["spec"]["podSelector"]["matchLabels"], labels)]
        if not selected:
            yield f"NetworkPolicy {name} selects no pods"
        for rule in policy["spec"].get("ingress", []):
            for port in rule["ports"]:
                for spec in selected:
                    if port["port"] not in port_names(spec):
                        yield f"NetworkPolicy {name}: no pod has a port {port['port']}"
    covered = [policy["spec"]["podSelector"]["matchLabels"]
               for policy in named(objects, "NetworkPolicy").values()]
    for item in objects:
        if item["kind"] == "StatefulSet" and not any(
                fits(selector, item["spec"]["template"]["metadata"]["labels"]) for selector in covered):
            yield f"StatefulSet {item['metadata']['name']}: no NetworkPolicy covers it"
