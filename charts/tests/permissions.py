"""Checks of pod security and of RBAC permissions."""

from manifests import label, pod_of

AGENT_CAPABILITIES = {"BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH"}


def unrestricted(pod, spec):
    """Violations of the Pod Security Standard "restricted" that the chart could cause."""
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{pod}: {field}"
    common = spec.get("securityContext", {})
    for volume in spec.get("volumes", []):
        kinds = volume.keys() - {"name"}
        if kinds - {"configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim", "downwardAPI"}:
            yield f"{pod}: volume {volume['name']} is of kind {kinds}"
    for container in spec["containers"]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield f"{pod}: privilege escalation"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{pod}: capabilities {own.get('capabilities')}"
        if not (own.get("runAsNonRoot", common.get("runAsNonRoot")) and own.get("runAsUser", common.get("runAsUser"))):
            yield f"{pod}: root"
        if own.get("seccompProfile", common.get("seccompProfile", {})).get("type") != "RuntimeDefault":
            yield f"{pod}: no seccomp profile"
        if not own.get("readOnlyRootFilesystem"):
            yield f"{pod}: its root file system is writable"


def excess_of_agent(pod, spec):
    if spec.get("hostNetwork") or spec.get("hostIPC"):
        yield f"{pod}: the host's network or IPC"
    if spec.get("automountServiceAccountToken") is not False:
        yield f"{pod}: a token for the API server"
    for volume in spec.get("volumes", []):
        for source in volume.get("projected", {}).get("sources", []):
            if source.get("serviceAccountToken", {}).get("audience") != "chainscope":
                yield f"{pod}: a token for another audience"
    for container in spec["containers"]:
        own = container["securityContext"]
        if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False or not own["readOnlyRootFilesystem"]:
            yield f"{pod}: {own}"
        if own["capabilities"]["drop"] != ["ALL"] or set(own["capabilities"]["add"]) != AGENT_CAPABILITIES:
            yield f"{pod}: capabilities {own['capabilities']}"
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec.get("volumes", []) if "hostPath" in volume}
        for mount in container.get("volumeMounts", []):
            if mount["name"] in paths and not mount.get("readOnly") and mount["name"] != "data":
                yield f"{pod}: writes to the host's {paths[mount['name']]}"
            if mount.get("mountPropagation"):
                yield f"{pod}: mount propagation"
    if spec.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{pod}: no seccomp profile"


def pod_logs(objects, wanted):
    """The agent's arguments and mounts against the values `agent.podLogs` (`wanted`) of the rendering."""
    paths = [wanted.get("path", "/var/log/pods")] if wanted.get("enabled", True) else []
    if paths and wanted.get("docker"):
        paths.append("/var/lib/docker/containers")
    for item in objects:
        if item["kind"] != "DaemonSet":
            continue
        spec = item["spec"]["template"]["spec"]
        agent = spec["containers"][0]
        arguments = [each for each in agent["args"] if each.startswith("--pod-logs")]
        if arguments != [f"--pod-logs={path}" for path in paths[:1]]:
            yield f"{label(item)}: {arguments}, not {paths[:1]}"
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        logs = [mount for mount in agent["volumeMounts"] if mount["name"].startswith("pod-logs")]
        if [mount["mountPath"] for mount in logs] != paths:
            yield f"{label(item)}: logs mounted at {logs}, not {paths}"
        for mount in logs:
            if not mount.get("readOnly"):
                yield f"{label(item)}: {mount['mountPath']} is writable"
            source = volumes[mount["name"]]["hostPath"]
            if source != {"path": mount["mountPath"], "type": "Directory"}:
                yield f"{label(item)}: {mount['mountPath']} is {source}"
        if len([name for name in volumes if name.startswith("pod-logs")]) != len(logs):
            yield f"{label(item)}: a volume of logs that is not mounted"


def excess_of_role(item, namespace):
    name = label(item)
    for rule in item["rules"]:
        if any("*" in rule.get(field, []) for field in ("apiGroups", "resources", "verbs")):
            yield f"{name}: a wildcard: {rule}"
        if {"escalate", "bind", "impersonate"} & set(rule["verbs"]):
            yield f"{name}: {rule['verbs']}"
        if "secrets" in rule.get("resources", []):
            if item["kind"] == "ClusterRole":
                yield f"{name}: Secrets of every namespace"
            elif item["metadata"]["namespace"] == namespace and not item["metadata"]["name"].endswith("-secrets"):
                if not rule.get("resourceNames"):
                    yield f"{name}: every Secret of its own namespace"
            elif set(rule["verbs"]) - {"get", "list", "watch"}:
                yield f"{name}: writes Secrets of other owners"
    # Agents have no permissions, so no role may be bound to them.


def problems(objects, namespace, defaults=True):
    """`defaults`: security contexts are not among the values, so pods are as restricted as they are by default."""
    for item in objects:
        if (pod := pod_of(item)) and defaults:
            labels, spec = pod
            component = labels["app.kubernetes.io/component"]
            name = label(item)
            if component == "agent" or name.endswith("-test-host"):
                yield from excess_of_agent(name, spec)
            elif component == "explorer":
                # The Explorer's image is a third party's; the proxy beside it is not.
                proxy = dict(spec, containers=[each for each in spec["containers"] if each["name"] == "proxy"])
                yield from unrestricted(name, proxy)
            else:
                yield from unrestricted(name, spec)
        if item["kind"] in ("Role", "ClusterRole"):
            yield from excess_of_role(item, namespace)
        if item["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            for subject in item["subjects"]:
                if subject["name"].endswith("-agent"):
                    yield f"{label(item)}: a permission of the agents"
