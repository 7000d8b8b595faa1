"""Checks of objects: valid for every supported version of Kubernetes, and with valid references."""

import functools
import importlib.resources
import json

import jsonschema
import referencing
import yaml

# The minimum version of the chart, and the three maintained ones.
VERSIONS = ("1.30", "1.34", "1.35", "1.36")
# Third-party kinds without a schema here.
FOREIGN = {
    ("cert-manager.io/v1", "Certificate"),
    ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("security.openshift.io/v1", "SecurityContextConstraints"),
}


class Loader(yaml.SafeLoader):
    """Rejects duplicate keys, of which YAML would take the last."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"duplicate: {', '.join(map(str, twice))}", node.start_mark)
        return super().construct_mapping(node, deep)


def load(text):
    return [each for each in yaml.load_all(text, Loader) if each is not None]


def label(item):
    metadata = item["metadata"]
    return f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


@functools.cache
def schemas(version):
    """Directory of a version's schemas, and the registry of its definitions."""
    folder = importlib.resources.files("kubernetes_validate") / f"kubernetes-json-schema/v{version}.0-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())
    registry = referencing.Registry().with_resource("_definitions.json", referencing.Resource.from_contents(definitions))
    return folder, registry


@functools.cache
def validator(version, kind, api_version):
    group, _, rest = api_version.partition("/")
    name = f"{kind.lower()}-{group.split('.')[0]}{'-' if rest else ''}{rest}.json"
    folder, registry = schemas(version)
    schema = json.loads((folder / name).read_text())
    return jsonschema.Draft202012Validator(schema, registry=registry)


def invalid(item):
    if (item["apiVersion"], item["kind"]) in FOREIGN:
        return
    for version in VERSIONS:
        try:
            checks = validator(version, item["kind"], item["apiVersion"])
        except FileNotFoundError:
            yield f"{label(item)}: Kubernetes {version} has no {item['apiVersion']} {item['kind']}"
            continue
        for error in checks.iter_errors(item):
            yield f"{label(item)}: Kubernetes {version}: {error.json_path}: {error.message}"


def pod_of(item):
    """Labels and spec of an object's pod template."""
    if item["kind"] == "Pod":
        return item["metadata"].get("labels", {}), item["spec"]
    template = item.get("spec", {}).get("template") if item["kind"] in ("Deployment", "DaemonSet", "StatefulSet") else None
    return (template["metadata"]["labels"], template["spec"]) if template else None


def matches(selector, labels):
    return all(labels.get(key) == value for key, value in selector.items())


def dangling(objects, accounts):
    """References to missing objects. `accounts`: names of ServiceAccounts that the values say exist."""
    existing = {("ServiceAccount", name) for name in accounts}
    pods = [(item, *pod) for item in objects if (pod := pod_of(item))]
    named = {(item["kind"], item["metadata"]["name"]) for item in objects}
    for item, labels, spec in pods:
        if item["kind"] != "Pod" and not matches(item["spec"]["selector"]["matchLabels"], labels):
            yield f"{label(item)}: its selector does not match its pods"
        if ("ServiceAccount", spec.get("serviceAccountName", "default")) not in named | existing and item["kind"] != "Pod":
            yield f"{label(item)}: no ServiceAccount {spec.get('serviceAccountName')}"
        claims = {claim["metadata"]["name"] for claim in item["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | claims
        for container in spec["containers"]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            for volume in mounted - volumes:
                yield f"{label(item)}: no volume {volume}"
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                port = container.get(probe, {}).get("httpGet", {}).get("port")
                if isinstance(port, str) and port not in ports:
                    yield f"{label(item)}: {probe} has the unknown port {port}"
            if not container["image"].split("@")[-1].partition(":")[2]:
                yield f"{label(item)}: image {container['image']} has neither tag nor digest"
    for item in objects:
        spec = item.get("spec", {})
        if item["kind"] == "Service":
            chosen, ports = spec["selector"], [port["targetPort"] for port in spec["ports"]]
        elif item["kind"] == "PodMonitor":
            # One for all components: of a component it is checked as Services are.
            yield from pod_monitor(item, pods)
            continue
        elif item["kind"] in ("Ingress", "HTTPRoute"):
            for service in backends(item) - {name for kind, name in named if kind == "Service"}:
                yield f"{label(item)}: no Service {service}"
            continue
        elif item["kind"] == "PodDisruptionBudget":
            chosen, ports = spec["selector"]["matchLabels"], []
        elif item["kind"] == "NetworkPolicy":
            chosen = spec["podSelector"]["matchLabels"]
            ports = [port["port"] for rule in spec.get("ingress", []) for port in rule.get("ports", [])]
        else:
            continue
        found = [spec for _, labels, spec in pods if matches(chosen, labels)]
        if not found:
            yield f"{label(item)}: selects no pod of the chart"
        offered = {port["name"] for spec in found for each in spec["containers"] for port in each.get("ports", [])}
        for port in ports:
            if port not in offered:
                yield f"{label(item)}: port {port} is not a port of a container"


def pod_monitor(item, pods):
    spec = item["spec"]
    components = spec["selector"]["matchExpressions"][0]["values"]
    for component in components:
        labels_wanted = spec["selector"]["matchLabels"] | {"app.kubernetes.io/component": component}
        found = [each for _, labels, each in pods if matches(labels_wanted, labels)]
        offered = {port["name"] for each in found for container in each["containers"] for port in container.get("ports", [])}
        for endpoint in spec["podMetricsEndpoints"]:
            if endpoint["port"] not in offered:
                yield f"{label(item)}: no pod of {component} has the port {endpoint['port']}"


def backends(item):
    """Names of the Services of an Ingress or an HTTPRoute."""
    rules = item["spec"]["rules"]
    if item["kind"] == "Ingress":
        return {path["backend"]["service"]["name"] for rule in rules for path in rule["http"]["paths"]}
    return {backend["name"] for rule in rules for backend in rule["backendRefs"]}


def problems(objects, seen, accounts=()):
    """Problems of the objects of one rendering. `seen`: objects that have been validated before; `accounts`: ServiceAccounts
    that the values say exist."""
    names = [label(item) for item in objects]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"duplicate {name}"
    for item in objects:
        text = json.dumps(item, sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield from invalid(item)
    yield from dangling(objects, accounts)
