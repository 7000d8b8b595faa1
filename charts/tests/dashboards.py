"""Checks of the dashboards: structure, and queries that Prometheus parses."""

import json
import pathlib
import re
import subprocess
import tempfile

import yaml


def panels(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries(folder):
    """Every query of the dashboards: its panel, and its text with Grafana's variables replaced."""
    for path in sorted((folder / "grafana").glob("*.json")):
        for panel in panels(json.loads(path.read_text())):
            for target in panel.get("targets", []):
                text = target["expr"].replace("$__rate_interval", "1m")
                yield f"{path.name}: {panel['title']}", re.sub(r"\$(node|host)\b", ".*", text)


def problems(folder):
    folder = pathlib.Path(folder)
    found = list(queries(folder))
    if len(found) < 30:
        yield f"only {len(found)} queries were found"
    rules = [{"record": f"query:{at}", "expr": text} for at, (_, text) in enumerate(found)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}, file)
        file.flush()
        done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield done.stdout + done.stderr
    uids = []
    for path in sorted((folder / "grafana").glob("*.json")):
        dashboard = json.loads(path.read_text())
        uids.append(dashboard["uid"])
        ids = [panel["id"] for panel in panels(dashboard)]
        if len(set(ids)) != len(ids):
            yield f"{path.name}: two panels with the same id"
        for panel in panels(dashboard):
            if panel["type"] != "row" and panel["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
                yield f"{path.name}: {panel['title']} has its own data source"
            if panel["type"] != "row" and not panel.get("targets"):
                yield f"{path.name}: {panel['title']} has no query"
    if len(set(uids)) != len(uids):
        yield "two dashboards with the same uid"
