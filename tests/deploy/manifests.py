"""Kubernetes objects without a cluster: finds what does not fit together in what a chart renders."""

import pathlib
import re

WORKLOADS = ("StatefulSet", "Job")
# For which a coordinator may merge rounds again before it listens.
LONGEST_RECOVERY_S = 3600


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
    """(labels, spec) of every pod."""
    return [({**item["spec"]["template"]["metadata"]["labels"],
              "statefulset.kubernetes.io/pod-name": f"{item['metadata']['name']}-{index}"},
             item["spec"]["template"]["spec"])
            for item in objects if item["kind"] in WORKLOADS
            for index in range(item["spec"].get("replicas", 1))]


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


def files_of(objects, spec, outside):
    """Paths of all files that configurations and secrets put into a container."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    found = set()
    for container in spec["containers"]:
        for mount in container.get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            files = ()
            if "configMap" in volume:
                files = named(objects, "ConfigMap").get(volume["configMap"]["name"], {}).get("data", ())
            if "secret" in volume:
                files = outside.get(volume["secret"]["secretName"], ())
            found |= {f"{mount['mountPath']}/{name}" for name in files}
    return found


def check_container(objects, workload, spec, container, images, outside, known_flags):
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
    for item in container.get("env", []):
        secret = item.get("valueFrom", {}).get("secretKeyRef")
        if secret is not None and secret["key"] not in outside.get(secret["name"], ()):
            yield f"{item['name']}: there is no {secret['key']} in a Secret {secret['name']}"
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
    provided = files_of(objects, spec, outside)
    for flag in flags:
        option, _, value = flag.partition("=")
        if option not in known_flags(program):
            yield f"{program} {command} has no flag {option}"
        if option in ("--listen", "--http", "--metrics"):
            listened.add(int(value.rpartition(":")[2]))
        if option in ("--config", "--tls_ca", "--tls_cert", "--tls_key", "--lead_tls_cert",
                      "--lead_tls_key", "--standby_cert", "--standby_key"):
            if value not in provided:
                yield f"{option}: nothing puts {value} there"
        if option == "--authority" and not {f"{value}/ca.pem", f"{value}/ca.key"} <= provided:
            yield f"{option}: nothing puts ca.pem and ca.key into {value}"
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
        arguments = item["spec"]["template"]["spec"]["containers"][0]["args"]
        flags = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        if "--etcd" in flags:
            if set(flags["--etcd"].split(",")) != hosts_of(objects, "etcd", 2379):
                yield f"{name}: {flags['--etcd']} are not the members of etcd"
            if flags["--advertise"] != f"$(POD_NAME).{item['spec']['serviceName']}:7070":
                yield f"{name}: its pods advertise no names of theirs"
        if "--initial-cluster" in flags:
            members = {f"{host.partition('.')[0]}=http://{host}"
                       for host in hosts_of(objects, "etcd", 2380)}
            if set(flags["--initial-cluster"].split(",")) != members:
                yield f"{name}: {flags['--initial-cluster']} are not its pods"


def check(objects, images, outside, known_flags):
    """Yields what does not fit, one sentence each. `images`: by the last part of their names.
    `outside`: what a user brings along, its files by its name. known_flags(program): the text that has
    every flag of a program."""
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
                                           outside, known_flags):
                yield f"{where}: {problem}"
    yield from check_shared_run(objects)
    for name, service in services.items():
        selected = [spec for labels, spec in pods(objects)
                    if fits(service["spec"]["selector"], labels)]
        if not selected:
            yield f"Service {name} selects no pods"
        for port in service["spec"]["ports"]:
            for spec in selected:
                if port_names(spec).get(port["targetPort"]) != port["port"]:
                    yield f"Service {name}: its port {port['targetPort']} is not the pods'"
    for name, policy in named(objects, "NetworkPolicy").items():
        selected = [spec for labels, spec in pods(objects)
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
