"""Runs every query of the dashboards, and one for every metric of the alerts, in a real Prometheus.

    live.py chainscope-aggregator=127.0.0.1:17739 chainscope-agent=10.0.0.3:17739 …

Each argument is a job and an address that is scraped; a job may come several times. Starts the Prometheus of this machine
(Debian's package), and fails with the queries that return nothing within a minute. Queries of a job that is not named are
left out, and said so.
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml

import dashboards

DEPLOY = pathlib.Path(__file__).parent.parent.parent / "deploy"
QUERY_TIMEOUT_S = 60
# Prefixes of metrics of one job; all others are of the aggregator.
PREFIXES = {"chainscope_agent_": "chainscope-agent", "chainscope_operator_": "chainscope-operator"}


def job_of(metric):
    return next((job for prefix, job in PREFIXES.items() if metric.startswith(prefix)), "chainscope-aggregator")


def metrics(text):
    return set(re.findall(r"\bchainscope_[a-z0-9_]+", text))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_query(port, query):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:
            # Prometheus listens and is not ready yet.
            return []
        sys.exit(f"live: {query}: {error.read().decode()}")
    except OSError:
        # It does not listen yet.
        return []


def wanted(jobs):
    """Queries that must return data, and their origin."""
    for place, query in dashboards.queries(DEPLOY):
        yield place, query.replace("[1m]", "[20s]"), metrics(query)
    for path in sorted((DEPLOY / "prometheus").glob("*.rules.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                for metric in sorted(metrics(rule["expr"])):
                    yield f"{path.name}: {rule['alert']}", metric, {metric}
    for job in jobs:
        yield "scraping", f'up{{job="{job}"}} == 1', set()


def main():
    targets = {}
    for argument in sys.argv[1:]:
        job, _, address = argument.partition("=")
        targets.setdefault(job, []).append(address)
    if not targets or not all(address for addresses in targets.values() for address in addresses):
        sys.exit(__doc__)
    queries, left_out = {}, set()
    for place, query, names in wanted(targets):
        # A target without the job of a metric, such as `chainscope run`, skips its queries.
        if missing := {job_of(name) for name in names} - targets.keys():
            left_out |= missing
        else:
            queries.setdefault(query, place)
    with tempfile.TemporaryDirectory() as folder:
        scrape = [{"job_name": job, "static_configs": [{"targets": addresses}]} for job, addresses in targets.items()]
        config = pathlib.Path(folder) / "prometheus.yml"
        config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": scrape}))
        port = free_port()
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        with subprocess.Popen(command) as server:
            try:
                waiting, deadline = dict(queries), time.monotonic() + QUERY_TIMEOUT_S
                while waiting and time.monotonic() < deadline and server.poll() is None:
                    waiting = {query: place for query, place in waiting.items() if not run_query(port, query)}
                    time.sleep(0.5)
            finally:
                server.terminate()
    for query, place in waiting.items():
        print(f"FAIL {place}: returns no data: {query}", file=sys.stderr)
    for job in sorted(left_out):
        print(f"live: queries of {job} skipped: no address given")
    print(f"live: {len(queries)} queries run, {len(waiting)} without data")
    sys.exit(bool(waiting))


main()
