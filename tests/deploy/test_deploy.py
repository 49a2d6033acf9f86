"""deploy/: each file is sound, each query and metric in it is asked of a real database and worker, and
each command in it is one of ours.
"""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import servers
from docskit import understood
from ruamel.yaml import YAML

from pgflow import App, schedule, step, workflow
from pgflow.meter import Meter
from pgflow.prometheus import serve

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = servers.REPOSITORY / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
GRACE_SECONDS = 30


def documents(path: Path) -> list[Any]:
    """The documents of a file of YAML."""
    return list(YAML(typ="safe", pure=True).load_all(path.read_text()))


COMPOSE = documents(DEPLOY / "compose.yaml")[0]
ALERTS = documents(DEPLOY / "alerts.yaml")[0]
PANELS = json.loads((DEPLOY / "grafana.json").read_text())["panels"]


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def grace_of(command: list[str]) -> int:
    """The value of --grace, whichever way it is written."""
    return seconds(re.search(r"--grace[= ](\d+s)", " ".join(command))[1])


# ---------------------------------------------------------------- structure


def test_compose_starts_each_service_after_what_it_needs_and_gives_workers_their_grace():
    services = COMPOSE["services"]
    for name, service in services.items():
        assert set(service) <= {
            "image", "build", "restart", "command", "environment", "volumes", "healthcheck",
            "depends_on", "ports", "stop_grace_period", "secrets",
        }, name  # fmt: skip
        assert ("image" in service) != ("build" in service), name
        assert set(service.get("depends_on", ())) <= set(services)
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])
    for name in ("web", "worker", "console"):
        assert services[name]["depends_on"] == {
            "roles": {"condition": "service_completed_successfully"}
        }
    worker = services["worker"]
    assert seconds(worker["stop_grace_period"]) > grace_of(worker["command"])
    logins = set(re.findall(r"create role (\w+) login", (DEPLOY / "roles.sql").read_text()))
    named = set(re.findall(r"postgresql://(\w+):", (DEPLOY / "compose.yaml").read_text()))
    assert named - {"postgres"} == logins


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_have_what_their_kind_needs(path):
    for document in documents(path):
        assert {"apiVersion", "kind", "metadata", "spec"} == set(document)
        assert re.fullmatch(r"[a-z][a-z0-9-]*", document["metadata"]["name"])
        if document["kind"] == "Deployment":
            template = document["spec"]["template"]
            labels = document["spec"]["selector"]["matchLabels"]
            assert labels.items() <= template["metadata"]["labels"].items()
            for container in template["spec"]["containers"]:
                ports = {port["name"] for port in container["ports"]}
                for probe in (name for name in container if name.endswith("Probe")):
                    get = container[probe].get("httpGet")
                    assert get is None or get["port"] in ports


def test_a_pod_outlives_the_grace_of_its_worker_and_probes_ask_what_it_answers():
    (worker,) = documents(DEPLOY / "kubernetes" / "workers.yaml")
    pod = worker["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > grace_of(container["command"])
    paths = {
        container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "liveness", "readiness")
    }
    assert paths == {"/live", "/ready"}
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert f"--health-port={ports['health']}" in container["command"]
    assert f"--metrics-port={ports['metrics']}" in container["command"]


def test_each_command_is_one_of_ours():
    commands = [
        service["command"] for service in COMPOSE["services"].values() if "command" in service
    ]
    for document in (one for path in MANIFESTS for one in documents(path)):
        pod = document["spec"].get("template", {}).get("spec", {})
        commands += [container["command"] for container in pod.get("containers", ())]
    ours = [command for command in commands if command[0] == "pgflow"]
    assert len(ours) == 5
    for command in ours:
        understood(" ".join(command))


# ---------------------------------------------------------------- queries


def scaler() -> dict[str, Any]:
    """The trigger by which KEDA sizes the workers."""
    _, scaled = documents(DEPLOY / "kubernetes" / "autoscale.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    return trigger


def test_keda_is_told_how_many_runs_need_a_worker(dsn, conn):
    trigger = scaler()
    assert trigger["type"] == "postgresql"
    query = trigger["metadata"]["query"]
    assert query in (servers.REPOSITORY / "docs/how-to/kubernetes.md").read_text()
    with psycopg.connect(servers.as_auditor(dsn), autocommit=True) as reader:
        assert reader.execute(query).fetchone() == (0,)
        conn.execute(
            "select pgflow.start_run('greet', '{}', 'k-' || i) from generate_series(1, 3) i"
        )
        conn.execute(
            "select pgflow.start_run('greet', '{}', 'later', run_at => now() + interval '1 h')"
        )
        assert reader.execute(query).fetchone() == (3,)
        conn.execute("select pgflow.pause_queue('default')")
        assert reader.execute(query).fetchone() == (0,)


def test_tables_of_the_dashboard_are_readable_by_an_auditor(dsn):
    queries = [
        target["rawSql"] for panel in PANELS for target in panel["targets"] if "rawSql" in target
    ]
    assert len(queries) == 2
    with psycopg.connect(servers.as_auditor(dsn), autocommit=True) as reader:
        for query in queries:
            assert reader.execute(query).fetchall() == []


@step
def hello() -> str:
    return "hello"


@schedule("0 3 * * *", tz="UTC")
@workflow
def greeted() -> str:
    return hello()


def scraped(dsn: str) -> dict[str, set[str]]:
    """The metrics of a worker that has worked, with the labels of each."""
    meter = Meter()
    app = App(dsn, include=[greeted])
    with app, app.worker(meter=meter):
        assert app.start(greeted).result() == "hello"
        server = serve(meter, dsn, port=0)
        try:
            with urllib.request.urlopen(server.url, timeout=servers.HANG_SECONDS) as answer:
                text = answer.read().decode()
        finally:
            server.close()
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# HELP"):
            continue
        name, labels = re.match(r"(?:# TYPE )?(\w+)(?:\{([^}]*)\})?", line).groups()
        found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels or ""))
    return found


OF_PROMQL = {
    "absent", "and", "by", "histogram_quantile", "increase", "max", "min", "or", "rate", "sum",
}  # fmt: skip
OF_SCRAPES = {"instance", "le"}
"""Labels that Prometheus adds, and that of the buckets of a histogram."""


def test_each_metric_and_label_of_alerts_and_dashboard_is_served_by_a_worker(dsn):
    served = scraped(dsn)
    rules = [rule for group in ALERTS["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules if set(rule["labels"]) != {"severity"}] == []
    assert [rule["alert"] for rule in rules if not rule["annotations"]["summary"]] == []
    expressions = [rule["expr"] for rule in rules]
    expressions += [t["expr"] for panel in PANELS for t in panel["targets"] if "expr" in t]
    assert len(expressions) > 25
    for expression in expressions:
        assert expression.count("(") == expression.count(")"), expression
        metrics = set(re.findall(r"\bpgflow_\w+", expression))
        assert metrics, expression
        assert metrics <= set(served), expression
        labels = set().union(*(served[metric] for metric in metrics)) | OF_SCRAPES
        named = set(re.findall(r"(\w+)=~?\"", expression))
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            named |= set(group.split(", "))
        assert named <= labels, expression
        bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"|\[[^\]]*\]|\bby \([^)]*\)", "", expression)
        words = set(re.findall(r"\b[a-z_]+\b", bare))
        assert words - metrics <= OF_PROMQL, expression


def test_the_roles_are_made_as_they_stand_and_may_do_their_work_and_no_more(dsn, conn):
    logins = re.findall(r"create role (\w+) login", (DEPLOY / "roles.sql").read_text())
    with conn.transaction():
        conn.execute((DEPLOY / "roles.sql").read_text())
        for login, may in zip(
            logins, ((True, False), (True, False), (True, True), (False, False)), strict=True
        ):
            row = conn.execute(
                "select has_function_privilege(%s, p.oid, 'execute'), has_function_privilege(%s, q.oid, 'execute') "
                "from pg_proc p, pg_proc q where p.pronamespace = 'pgflow'::regnamespace and q.pronamespace = "
                "p.pronamespace and p.proname = 'start_run' and q.proname = 'pause_queue' limit 1",
                (login, login),
            ).fetchone()
            assert row == may, login
        raise psycopg.Rollback
