"""Renders the chart with the values of values.yaml and checks the objects. Run by charts/check."""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

import dashboards
import manifests
import permissions

HERE = pathlib.Path(__file__).parent
CHART = HERE.parent / "chainscope"
ROOT = HERE.parent.parent
# An older chart, from which `lifecycle` upgrades to this one.
OLDER = ROOT / "e2e/fixtures/chainscope-0.0.10.tgz"
# Fields of a StatefulSet that every supported version of Kubernetes lets change.
MUTABLE = {"minReadySeconds", "ordinals", "persistentVolumeClaimRetentionPolicy", "replicas", "template", "updateStrategy"}
# Kinds of change that Artifact Hub knows.
CHANGES = {"added", "changed", "deprecated", "removed", "fixed", "security"}
RELEASE, NAMESPACE = "scope", "chainscope"

failures = []


def fail(place, what):
    failures.append(f"{place}: {what}")


def template(values, chart=CHART):
    """Renders the chart with these values, and a registry if they name none; returns the process with its output."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        values = dict(values, image={"registry": "localhost"} | values.get("image", {}))
        yaml.safe_dump(values, file)
        file.flush()
        command = [os.environ["HELM"], "template", RELEASE, str(chart), "--namespace", NAMESPACE, "--values", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout, done.stderr


def refused(case, rendered):
    name, says = case["name"], case["says"]
    accepted, _, error = rendered
    if accepted:
        fail(name, "should be refused, but is taken")
    elif says not in error:
        fail(name, f"is refused with another error than {says!r}:\n{error}")


def taken(case, rendered, seen):
    name = case["name"]
    accepted, text, error = rendered
    if not accepted:
        fail(name, f"is refused:\n{error}")
        return
    try:
        objects = manifests.load(text)
    except yaml.YAMLError as error:
        fail(name, error)
        return
    for problem in (
        *manifests.problems(objects, seen, case.get("accounts", ())),
        *permissions.problems(objects, NAMESPACE, "security" not in case),
        *permissions.pod_logs(objects, case["values"].get("agent", {}).get("podLogs", {})),
    ):
        fail(name, problem)


def same_keys(values, schema, place=""):
    """Each key of the schema is in values.yaml with its comment."""
    properties = schema.get("properties")
    if properties is None or not isinstance(values, dict):
        return
    for key in sorted(properties.keys() - values.keys() - {"global"}):
        # Kubernetes objects whose fields are all optional.
        if not re.search("ecurityContext$|^/agent/updateStrategy/rollingUpdate$", place):
            fail("values.yaml", f"lacks {place}/{key} of the schema")
    for key, value in values.items():
        sub = properties.get(key, {})
        same_keys(value, sub, f"{place}/{key}")


def workloads(text):
    return [item for item in manifests.load(text) if manifests.pod_of(item) and item["kind"] != "Pod"]


def immutable(item):
    """Fields of a workload that the API server refuses to change, with the defaults of those that it fills in."""
    if item["kind"] != "StatefulSet":
        return {"selector": item["spec"]["selector"]}
    given = {field: value for field, value in item["spec"].items() if field not in MUTABLE}
    return {"podManagementPolicy": "OrderedReady", "revisionHistoryLimit": 10} | given


def upgradable():
    """The workloads of an older chart are upgraded: they have their names and immutable fields."""
    found = []
    for chart in (OLDER, CHART):
        accepted, text, error = template({}, chart)
        if not accepted:
            fail(chart.name, error)
            return
        found.append({manifests.label(item): immutable(item) for item in workloads(text)})
    older, today = found
    if len(older) != 3:
        fail(OLDER.name, f"has other workloads: {', '.join(older)}")
    for label, fields in older.items():
        now = today.get(label, {})
        if changed := [field for field in sorted(fields.keys() | now.keys()) if fields.get(field) != now.get(field)]:
            fail(label, f"differs in immutable fields from {OLDER.name}: {', '.join(changed)}")


def pods_without_versions():
    """Pod templates, selectors and claims of two versions of the chart are the same but for images: a new chart restarts no pod
    that is the same, and changes no immutable field."""
    values = {"image": {"registry": "localhost", "tag": "t"}}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        other = pathlib.Path(folder) / "chainscope"
        shutil.copytree(CHART, other)
        text = (CHART / "Chart.yaml").read_text()
        (other / "Chart.yaml").write_text(re.sub("(?m)^(version|appVersion): .*$", r"\1: 99.0.0", text))
        for chart in (CHART, other):
            accepted, text, error = template(values, chart)
            if not accepted:
                fail("another version of the chart", error)
                return
            specs = [item["spec"] for item in workloads(text)]
            found.append([(spec["template"], spec["selector"], spec.get("volumeClaimTemplates")) for spec in specs])
    if len(found[0]) != 3 or found[0] != found[1]:
        fail("pod templates", "differ between versions of the chart")


def annotations():
    """What Artifact Hub reads of the chart: lists in YAML, with the kinds of change and the resources that it knows."""
    hub = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    read = {name: yaml.safe_load(hub[f"artifacthub.io/{name}"]) for name in ("changes", "crds", "crdsExamples", "links")}
    for change in read["changes"]:
        if change.keys() != {"kind", "description"} or change["kind"] not in CHANGES:
            fail("Chart.yaml", f"has a change that Artifact Hub does not read: {change}")
    kinds = {item["kind"] for item in read["crds"]}
    if kinds != {"TezosNode", "NodeTrace"} or kinds != {item["kind"] for item in read["crdsExamples"]}:
        fail("Chart.yaml", "does not have an example of every CRD")


def explained():
    """The guide explains exactly the reasons of conditions that exist."""
    source = (ROOT / "operator/src/reconcile/reason.rs").read_text()
    reasons = set(re.findall(r'Self::\w+ => "([A-Z]\w+)"', source)) - {"True", "False", "Unknown"}
    guide = (ROOT / "docs/kubernetes.md").read_text()
    table = guide.split("| reason |")[1].split("\n\n")[0]
    rows = set(re.findall(r"`([A-Z]\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:])))
    if len(reasons) < 10:
        fail("reason.rs", "is read by this check and was not understood")
    for reason in sorted(reasons - rows):
        fail("docs/kubernetes.md", f"does not explain {reason}")
    for reason in sorted(rows - reasons):
        fail("docs/kubernetes.md", f"explains {reason}, which is not a reason")


def main():
    table = yaml.safe_load((HERE / "values.yaml").read_text())
    seen = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        rendered = list(pool.map(lambda case: template(case["values"]), table["bad"] + table["good"]))
    for case in table["bad"]:
        refused(case, rendered.pop(0))
    for case in table["good"]:
        taken(case, rendered.pop(0), seen)
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    same_keys(yaml.safe_load((CHART / "values.yaml").read_text()), schema)
    pods_without_versions()
    upgradable()
    annotations()
    explained()
    plain = ROOT / "deploy/manifests/chainscope.yaml"
    for problem in manifests.problems(manifests.load(plain.read_text()), seen):
        fail(plain.name, problem)
    for problem in dashboards.problems(ROOT / "deploy"):
        fail("dashboards", problem)
    for failure in failures:
        print(f"FAIL {failure}", file=sys.stderr)
    versions = ", ".join(manifests.VERSIONS)
    print(
        f"charts: {len(table['good'])} values accepted, {len(table['bad'])} refused, "
        f"{len(seen)} different objects valid for Kubernetes {versions}; {len(failures)} failures"
    )
    sys.exit(bool(failures))


main()
