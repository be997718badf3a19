"""Checks the files of deploy/: names that must exist elsewhere, and shapes that no tool checks. See ./run --help."""

import json
import re
import sys
from pathlib import Path

import yaml

import live

DEPLOY = Path("deploy")
RUNBOOK = Path("docs/alerts.md")
ALERTS = DEPLOY / "prometheus/alerts.yml"
DASHBOARD = DEPLOY / "grafana/tollgate.json"
METRICS = Path("docs/metrics.md")

NAME = re.compile(r"\b(?:tollgate|process)_[a-z0-9_]+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
# Series that exist only if receivers of events are configured.
OF_RECEIVERS = {
    "tollgate_event_deliveries_total": {"receiver", "result"},
    "tollgate_event_lag_seconds": {"receiver"},
}
# Series that exist only if a vendor has a login with tokens.
OF_LOGINS = {"tollgate_vendor_login_failures": {"vendor"}}
# Labels that Prometheus adds, and labels of its ALERTS series.
ADDED = {"job", "instance", "alertname", "alertstate"}
# The time that a gateway needs after limits.drain_seconds: 5 s for calls that it cuts, and 5 s for their charges.
AFTER_DRAIN = 10


class Mistakes(list):
    def unless(self, right, what):
        if not right:
            self.append(what)


# --- expressions ---


def alerts():
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard():
    return json.loads(DASHBOARD.read_text())


def dashboard_expressions():
    """Expressions for promtool, without the variables of Grafana."""
    found = dashboard()
    exprs = [target["expr"] for panel in found["panels"] for target in panel.get("targets", [])]
    exprs += [annotation["expr"] for annotation in found["annotations"]["list"]]
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            selector = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            exprs.append(f"count by ({selector[2]}) ({selector[1]})")
    for name in ("__rate_interval", "__range", "__interval"):
        exprs = [expr.replace(f"${name}", "5m") for expr in exprs]
    return [re.sub(r"\$\w+", ".*", expr) for expr in exprs]


def dashboard_as_rules():
    rules = [{"record": f"panel:{n}", "expr": expr} for n, expr in enumerate(dashboard_expressions())]
    print(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}, width=1000))


def selectors(expr):
    """Each metric of an expression with the labels that its selector names."""
    for found in re.finditer(NAME.pattern + r"(?:\{([^}]*)\})?", expr):
        yield found[0].split("{")[0], set(re.findall(r"(\w+)\s*[=!]", found[1] or ""))


def grouped_by(expr):
    lists = re.findall(r"\bby\s*\(([^)]*)\)", expr)
    return {label.strip() for text in lists for label in text.split(",")}


# --- metrics ---


def scraped(text):
    """Metrics of a scrape with their labels; histograms by their base names."""
    labels = {}
    for line in text.splitlines():
        sample = re.match(r"(\w+)(?:\{(.*)\})? ", line)
        if sample and not line.startswith("#"):
            names = set(re.findall(r'(\w+)="', sample[2] or ""))
            labels.setdefault(sample[1], set()).update(names)
    return labels


def metrics():
    mistakes = Mistakes()
    documented = set(NAME.findall(METRICS.read_text()))

    def is_documented(name):
        return name in documented or SUFFIX.sub("", name) in documented

    with live.Demo() as demo:
        demo.some_calls()
        there = OF_RECEIVERS | OF_LOGINS | scraped(demo.scrape())
    for name in there:
        mistakes.unless(is_documented(name), f"{name} is not in {METRICS}")

    sources = [(f"alert {rule['alert']}", rule["expr"]) for rule in alerts()]
    sources += [("the dashboard", expr) for expr in dashboard_expressions()]
    for where, expr in sources:
        labels = set(ADDED)
        for name, asked in selectors(expr):
            mistakes.unless(is_documented(name), f"{where}: {name} is not in {METRICS}")
            mistakes.unless(name in there, f"{where}: the demo has no {name}")
            wrong = asked - there.get(name, set()) - ADDED
            mistakes.unless(not wrong, f"{where}: {name} has no label {', '.join(sorted(wrong))}")
            labels |= there.get(name, set())
        wrong = grouped_by(expr) - labels
        mistakes.unless(not wrong, f"{where}: by {', '.join(sorted(wrong))}: no such label in {expr}")
    print(f"   {len(there)} metrics scraped, {len(sources)} expressions")

    runbook, tested = RUNBOOK.read_text(), (DEPLOY / "prometheus/alerts_test.yml").read_text()
    for rule in alerts():
        name = rule["alert"]
        mistakes.unless(f"\n### {name}\n" in runbook, f"{RUNBOOK} has no section for {name}")
        anchor = f"{RUNBOOK}#{name.lower()}"
        mistakes.unless(rule["annotations"]["runbook"] == anchor, f"{name}: its runbook is {anchor}")
        mistakes.unless(f'alertname="{name}"' in tested, f"{name} never fires in alerts_test.yml")
    for name in re.findall(r"^### (Tollgate\w+)$", runbook, re.M):
        mistakes.unless(name in {rule["alert"] for rule in alerts()}, f"{RUNBOOK}: there is no alert {name}")
    print(f"   {len(alerts())} alerts")

    panels = dashboard()["panels"]
    ids = [panel["id"] for panel in panels]
    mistakes.unless(len(ids) == len(set(ids)), "two panels of one id")
    taken = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        mistakes.unless(at["x"] + at["w"] <= 24, f"{panel['title']} is beyond the edge")
        mistakes.unless(not cells & taken, f"{panel['title']} covers another panel")
        taken |= cells
    return mistakes


# --- compose ---


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * (60 if unit == "m" else 1)


def compose():
    mistakes = Mistakes()
    text = (DEPLOY / "compose.yaml").read_text()
    stack = yaml.safe_load(text)
    example = set(re.findall(r"^(\w+)=", (DEPLOY / ".env.example").read_text(), re.M))
    used = set(re.findall(r"(?<!\$)\$\{(\w+)", text))
    mistakes.unless(used == example, f".env.example and compose.yaml differ: {sorted(used ^ example)}")
    named = set()
    for name, service in stack["services"].items():
        for key, value in {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}.items():
            mistakes.unless(service.get(key) == value, f"{name}: {key}")
        mistakes.unless(name == "tollgate" or "healthcheck" in service, f"{name}: no healthcheck")
        mistakes.unless(set(service["networks"]) <= set(stack["networks"]), f"{name}: its networks")
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                mistakes.unless((DEPLOY / source).exists(), f"{name}: there is no {source}")
            else:
                named.add(source)
        for port in service.get("ports", []):
            mistakes.unless(port.startswith(("127.0.0.1:", "${TOLLGATE_LISTEN")), f"{name}: {port} is open to all")
        mistakes.unless(":latest" not in service["image"], f"{name}: which image?")
    mistakes.unless(named == set(stack["volumes"]), f"volumes: {sorted(named ^ set(stack['volumes']))}")
    gateway = stack["services"]["tollgate"]
    build = DEPLOY / gateway["build"]["context"]
    mistakes.unless((build / gateway["build"]["dockerfile"]).exists(), "there is no Dockerfile")
    grace = seconds(gateway["stop_grace_period"])
    mistakes.unless(grace > 30 + AFTER_DRAIN, "the gateway is killed before it has drained")
    targets = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    mistakes.unless(targets["job_name"] == "tollgate", "prometheus.yml: the alerts want job tollgate")
    folder = re.search(r"path: (.*)", (DEPLOY / "grafana/provisioning/dashboards/tollgate.yaml").read_text())[1]
    mounts = stack["services"]["grafana"]["volumes"]
    mistakes.unless(any(f":{folder}/" in mount for mount in mounts), "Grafana does not find the dashboard")
    print(f"   {len(stack['services'])} services")
    return mistakes


# --- the chart ---


def chart(rendered, config):
    """Checks that do not depend on the values; writes the gateway's configuration to a file for `tollgate check`."""
    mistakes = Mistakes()
    kinds = {}
    for resource in yaml.safe_load_all(Path(rendered).read_text()):
        if resource:
            kinds.setdefault(resource["kind"], []).append(resource)
    text = next(c["data"]["tollgate.toml"] for c in kinds["ConfigMap"] if "tollgate.toml" in c["data"])
    Path(config).write_text(text)
    drain = int(re.search(r"drain_seconds = (\d+)", text)[1])

    gateway = kinds["StatefulSet"][0]
    spec = gateway["spec"]["template"]["spec"]
    container = spec["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listens = [int(port) for port in re.findall(r'^ *listen *= ".*:(\d+)"', text, re.M)]
    mistakes.unless([ports["http"], ports["admin"]] == listens, f"ports {ports}, but it listens on {listens}")
    waits = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = spec["terminationGracePeriodSeconds"]
    mistakes.unless(grace > waits + drain + AFTER_DRAIN, f"killed after {grace} s, before it has drained")
    probes = {"livenessProbe": "/livez", "startupProbe": "/livez", "readinessProbe": "/readyz"}
    for probe, path in probes.items():
        asked = container[probe]["httpGet"]
        mistakes.unless(asked == {"path": path, "port": "admin"}, f"{probe}: {asked}")

    mistakes.unless(spec["securityContext"]["runAsNonRoot"], "runs as root")
    mistakes.unless(spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, "no seccomp profile")
    mistakes.unless(not spec["automountServiceAccountToken"], "has a token of the cluster's")
    confined = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mistakes.unless(container["securityContext"] == confined, "the container has rights")

    outbox = re.search(r'outbox *= "(.*)/', text)[1]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    claims = [claim["metadata"]["name"] for claim in gateway["spec"]["volumeClaimTemplates"]]
    mistakes.unless(mounts.get("outbox") == outbox and claims == ["outbox"], "the outbox is on no volume")
    kept = gateway["spec"]["persistentVolumeClaimRetentionPolicy"]
    mistakes.unless(set(kept.values()) == {"Retain"}, "an outbox is deleted with its pod")

    secret = container["envFrom"][0]["secretRef"]["name"]
    made = [made["metadata"]["name"] for made in kinds.get("Secret", [])]
    mistakes.unless(made in ([], [secret]), f"reads {secret}, makes {made}")
    services = {service["metadata"]["name"]: service["spec"] for service in kinds["Service"]}
    mistakes.unless(gateway["spec"]["serviceName"] in services, "the pods' service is missing")
    pod = gateway["spec"]["template"]["metadata"]["labels"]
    chosen = [service["selector"] for service in services.values()]
    chosen += [kinds[kind][0]["spec"]["selector"]["matchLabels"] for kind in ("StatefulSet", "PodDisruptionBudget")]
    chosen.append(kinds["NetworkPolicy"][0]["spec"]["podSelector"]["matchLabels"])
    for selector in chosen:
        mistakes.unless(selector.items() <= pod.items(), f"{selector} does not choose the pods")
    for callers in services.values():
        if callers.get("clusterIP") != "None":
            mistakes.unless([p["targetPort"] for p in callers["ports"]] == ["http"], "operators' port for callers")
    for monitor in kinds.get("ServiceMonitor", []):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        watched = [s for s in kinds["Service"] if wanted <= s["metadata"]["labels"].items()]
        mistakes.unless(len(watched) == 1, "Prometheus finds not one service")
        job = watched[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        mistakes.unless(job == "tollgate", f"the alerts want job tollgate, not {job}")
    for rules in kinds.get("PrometheusRule", []):
        mistakes.unless(rules["spec"] == yaml.safe_load(ALERTS.read_text()), "other alerts than alerts.yml")
    for copy in kinds["ConfigMap"]:
        if "tollgate.json" in copy["data"]:
            mistakes.unless(json.loads(copy["data"]["tollgate.json"]) == dashboard(), "another dashboard")
    print(f"   {Path(rendered).stem}.yaml: {sum(map(len, kinds.values()))} resources")
    return mistakes


def redis_rights():
    """Checks that the gateway's user may run every command of its scripts."""
    user = re.search(r"^user tollgate .*$", Path("deploy/redis.conf").read_text(), re.M).group()
    granted = set(re.findall(r"\+(\w+)", user))
    scripts = [path for path in Path("layers").rglob("*.lua")]
    assert len(scripts) > 20, "the scripts are somewhere else"
    for path in scripts:
        for command in sorted(set(re.findall(r"call\('([A-Z]+)'", path.read_text()))):
            if command.lower() not in granted:
                yield f"{path} calls {command}, which deploy/redis.conf does not let the gateway do"


def main():
    part, *arguments = sys.argv[1:]
    parts = {
        "dashboard-as-rules": dashboard_as_rules,
        "metrics": metrics,
        "compose": compose,
        "chart": chart,
        "redis-rights": redis_rights,
        "redis": live.redis,
        "nginx": live.nginx,
    }
    mistakes = list(dict.fromkeys(parts[part](*arguments) or []))
    for mistake in mistakes:
        print(f"   {mistake}")
    sys.exit(1 if mistakes else 0)


if __name__ == "__main__":
    main()
