#!/usr/bin/env python3
"""Checks deploy/kubernetes without a cluster: kustomize, the API's schemas, rules of our own, and the configurations.

usage: check.py BIN_DIR   (where ratewright, ratewright-allocator and ratewright-endpointd are)
"""
import re, subprocess, sys, tempfile
from pathlib import Path

import kubernetes_validate, yaml

HERE = Path(__file__).resolve().parent
OVERLAYS = ["base", "overlays/example"]
VERSIONS = [f"1.{minor}" for minor in range(31, 38)]
# What the daemon may see of a node.
HOST_PATHS = {"/etc/ratewright/tls", "/run/ratewright", "/run/netns", "/sys/fs/cgroup", "/sys/fs/bpf"}
CAPABILITIES = {"endpointd": {"SYS_ADMIN", "NET_ADMIN"}, "allocator": set()}
failures = []


def check(what, good, why=""):
    print(f"kubernetes-check: {'ok  ' if good else 'FAIL'} {what}{'' if good else ': ' + str(why)}")
    if not good:
        failures.append(what)


def run(*args, stdin=None):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, input=stdin)


def manifests(overlay):
    """Returns what kustomize makes of an overlay."""
    made = run("kubectl", "kustomize", HERE / overlay)
    if made.returncode:
        sys.exit(f"kubernetes-check: kubectl kustomize {overlay} failed (kubectl 1.21 or newer is needed): {made.stderr}")
    return list(yaml.safe_load_all(made.stdout))


def schema(overlay, documents):
    for version in VERSIONS:
        errors = []
        for document in documents:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                errors.append(f"{document['kind']}: {'.'.join(map(str, error.path))}: {error.message}")
        check(f"{overlay}: schema of {version}, {len(documents)} objects", not errors, errors)


def containers(documents):
    for document in documents:
        template = document.get("spec", {}).get("template")
        if template:
            for container in template["spec"]["containers"]:
                yield document, template["spec"], container


def rules(overlay, documents):
    """Returns the names of the rules that are broken."""
    broken = []
    for document, pod, container in containers(documents):
        security = container["securityContext"]
        capabilities = security["capabilities"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        hosts = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        for rule, kept in {
            "capabilities": capabilities["drop"] == ["ALL"]
            and set(capabilities.get("add", [])) == CAPABILITIES[container["name"]],
            "no privilege": not security.get("privileged") and security["allowPrivilegeEscalation"] is False,
            "read-only root": security["readOnlyRootFilesystem"] is True,
            "host paths": hosts <= HOST_PATHS,
            "no token": pod["automountServiceAccountToken"] is False,
            "memory limit": "memory" in container["resources"]["limits"],
            "probes": all(f"{kind}Probe" in container for kind in ("startup", "liveness", "readiness")),
            "mounts have volumes": all(mount["name"] in volumes for mount in container["volumeMounts"]),
            "selector": document["spec"]["selector"]["matchLabels"].items()
            <= document["spec"]["template"]["metadata"]["labels"].items(),
            "a version": re.search(r":\d+\.\d+\.\d+$", container["image"]),
        }.items():
            if not kept:
                broken.append(f"{container['name']}: {rule}")
    return broken


def a_rule_notices_its_breach(documents):
    for rule, change in {
        "endpointd: capabilities": lambda c, pod: c["securityContext"]["capabilities"]["add"].append("SYS_MODULE"),
        "endpointd: host paths": lambda c, pod: pod["volumes"][2]["hostPath"].update(path="/proc"),
        "endpointd: no privilege": lambda c, pod: c["securityContext"].update(privileged=True),
    }.items():
        copy = yaml.safe_load(yaml.safe_dump(documents))
        for _, pod, container in containers(copy):
            if container["name"] == rule.split(":")[0]:
                change(container, pod)
        check(f"rule `{rule}` notices its breach", rule in rules("", copy), rules("", copy))


def configurations(overlay, documents, bin_dir):
    """Has the programs check the files that the pods get, with certificates of the nodes' names."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for document in documents:
            for name, text in document.get("data", {}).items() if document["kind"] == "ConfigMap" else ():
                (folder / name).write_text(text.replace("/etc/ratewright-tls", str(folder)))
        nodes = re.findall(r'^name = "(.*)"$', (folder / "topology.toml").read_text(), re.M)
        run(bin_dir / "ratewright", "certs", "init", "--dir", folder)
        for name, stem in [("ratewright-allocator", "allocator"), *((node, "host") for node in nodes)]:
            run(bin_dir / "ratewright", "certs", "issue", "--dir", folder, "--name", name)
            for end in ("pem", "key"):
                (folder / f"{name}.{end}").replace(folder / f"{stem}.{end}")
        allocator = run(bin_dir / "ratewright-allocator", "check-config", "--config", folder / "allocator.toml")
        check(f"{overlay}: the allocator's configuration", allocator.returncode == 0, allocator.stderr)
        daemon = run(bin_dir / "ratewright-endpointd", "check-config", "--config", folder / "endpointd.toml",
                     "--host", nodes[-1])
        check(f"{overlay}: the daemon's configuration", daemon.returncode == 0, daemon.stderr)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for overlay in OVERLAYS:
        documents = manifests(overlay)
        schema(overlay, documents)
        check(f"{overlay}: rules", not rules(overlay, documents), rules(overlay, documents))
        configurations(overlay, documents, Path(sys.argv[1]))
    a_rule_notices_its_breach(documents)
    if failures:
        sys.exit(f"kubernetes-check: {len(failures)} checks failed")


main()
