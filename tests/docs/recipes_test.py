#!/usr/bin/env python3
"""recipes_test.py PAGE...

The files in docs/kubernetes.md and docs/compose.md: each can be parsed, each volume
that is mounted is there and each that is there is mounted, each variable names a
path below a mount, and what the init container copies is what the variable names.
"""

import pathlib
import re
import sys

import yaml

LIBRARY = "/$LIB/librcsock_preload.so"
IMAGE_TREE = "/opt/rcsock"  # where tools/dist --image has it
VERSION = pathlib.Path("VERSION").read_text(encoding="ascii").strip()
VARIABLES = set(re.findall(r'"(RCSOCK_[A-Z_]+)"', pathlib.Path("lib/base/config.h").read_text(encoding="utf-8")))
KEYS = {"containers": "name", "initContainers": "name", "env": "name", "volumes": "name",
        "volumeMounts": "mountPath", "ports": "containerPort"}


def check(good, *what):
    if not good:
        raise AssertionError(what)


def files_of(page):
    """Returns the page's YAML files by name, each as a list of documents."""
    files = {}
    for text in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
        name = re.match(r"# (\S+?\.yaml)\b", text)
        check(name, "a file without a name", text[:80])
        check(name.group(1) not in files, name.group(1))
        check("\t" not in text, name.group(1))
        files[name.group(1)] = list(yaml.safe_load_all(text))
    return files


def merged(base, patch, key=""):
    """A strategic merge, as Kustomize's: lists of objects by their key."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {name: merged(base[name], patch[name], name) if name in base and name in patch
                else patch.get(name, base.get(name)) for name in {**base, **patch}}
    if isinstance(base, list) and key in KEYS:
        by = {one[KEYS[key]]: one for one in base}
        for one in patch:
            by[one[KEYS[key]]] = merged(by.get(one[KEYS[key]], {}), one)
        return list(by.values())
    return patch


def below(path, mounts):
    """Returns the mount that a path lies in, and the rest of the path."""
    for at in sorted(mounts, key=len, reverse=True):
        if path == at or path.startswith(at + "/"):
            return mounts[at], path[len(at):]
    return None, path


def check_variables(variables, mounts):
    for name in variables:
        check(name == "LD_PRELOAD" or name in VARIABLES, "no such variable", name)
    if "LD_PRELOAD" in variables:
        volume, rest = below(variables["LD_PRELOAD"], mounts)
        check(volume == "rcsock" and rest == LIBRARY, variables)
    if "RCSOCK_MEET_DIR" in variables:
        volume, rest = below(variables["RCSOCK_MEET_DIR"], mounts)
        check(volume is not None and volume != "rcsock" and rest == "", variables)
    if "RCSOCK_KEY_FILE" in variables:
        check(below(variables["RCSOCK_KEY_FILE"], mounts)[0] is not None, variables)


def check_copy(command, mounts):
    check(command[:2] == ["sh", "-c"] and len(command) == 3, command)
    # What is mapped must not be written over, and the copy may be made again.
    copy = re.fullmatch(r"rm -rf (/\S+)/\* && cp -a (\S+) (/\S+)/", command[2])
    check(copy and copy.group(1) == copy.group(3) and copy.group(2) == IMAGE_TREE + "/.", command)
    check(below(copy.group(3), mounts) == ("rcsock", ""), command, mounts)


def check_pod(pod):
    volumes = {one["name"] for one in pod.get("volumes", [])}
    check(len(volumes) == len(pod.get("volumes", [])), "a volume twice")
    used = set()
    for kind in ("initContainers", "containers"):
        for container in pod.get(kind, []):
            check(container.get("image"), container)
            mounts = {one["mountPath"]: one["name"] for one in container.get("volumeMounts", [])}
            used |= set(mounts.values())
            variables = {one["name"]: one["value"] for one in container.get("env", [])}
            check(all(isinstance(value, str) for value in variables.values()), variables)
            check_variables(variables, mounts)
            if "rcsock:" in container["image"]:
                check(container["image"].endswith("/rcsock:" + VERSION), container["image"])
            for one in container.get("volumeMounts", []):
                writes = kind == "initContainers" or one["mountPath"] == variables.get("RCSOCK_MEET_DIR")
                check(one.get("readOnly", False) != writes, one)
            if kind == "initContainers":
                check_copy(container["command"], mounts)
    check(used == volumes, "mounted and not there, or there and not mounted", used ^ volumes)


def templates(documents):
    return [one for one in documents if one["kind"] in ("Deployment", "StatefulSet")]


def test_kubernetes(files):
    for documents in files.values():
        for one in documents:
            check({"apiVersion", "kind"} <= set(one), one)
    root = files["kustomization.yaml"][0]
    check(all(name in files for name in root["resources"]), root)
    (base,) = templates(files["redis.yaml"])
    pods = {}
    for folder in [*root["components"], "rdma"]:
        component = files[folder + "/kustomization.yaml"][0]
        check(component["kind"] == "Component", component)
        for patch in component["patches"]:
            (change,) = files[f"{folder}/{patch['path']}"]
            label, value = patch["target"]["labelSelector"].split("=")
            check(base["metadata"]["labels"][label] == value, patch)
            names = {one["name"] for one in change["spec"]["template"]["spec"]["containers"]}
            have = {one["name"] for one in base["spec"]["template"]["spec"]["containers"]}
            check(names <= have, "a patch adds a container", names)
            pods[folder] = merged(base, change)
    both = merged(pods["rcsock"], files["rdma/rdma.yaml"][0])
    metrics = merged(both, files["metrics.yaml"][0])
    for one in (*pods.values(), both, metrics):
        check_pod(one["spec"]["template"]["spec"])
    spec = metrics["spec"]["template"]["spec"]
    check(spec["shareProcessNamespace"] is True, "metrics see other containers' processes")
    (sidecar,) = [one for one in spec["containers"] if one["name"] == "rcsock-metrics"]
    port = metrics["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"]
    check(sidecar["args"][:2] == ["stat", "--serve"] and sidecar["args"][2].endswith(":" + port), sidecar)
    check(sidecar["ports"] == [{"containerPort": int(port)}], sidecar)
    labels = base["spec"]["template"]["metadata"]["labels"]
    policy = files["policy.yaml"][0]["spec"]
    service = [one for one in files["redis.yaml"] if one["kind"] == "Service"][0]["spec"]
    for selector in (base["spec"]["selector"]["matchLabels"], policy["podSelector"]["matchLabels"],
                     service["selector"]):
        check(selector.items() <= labels.items(), selector)
    ports = {one["containerPort"] for one in base["spec"]["template"]["spec"]["containers"][0]["ports"]}
    check({policy["ingress"][0]["ports"][0]["port"], service["ports"][0]["port"]} == ports, ports)


def test_compose(files):
    main = files["compose.yaml"][0]
    used = set()
    for name, service in main["services"].items():
        mounts, read_only = {}, set()
        for one in service["volumes"]:
            volume, path, *options = one.split(":")
            mounts[path] = volume
            if options == ["ro"]:
                read_only.add(path)
        used |= set(mounts.values())
        if "entrypoint" in service:
            check(service["image"] == "rcsock:" + VERSION, service)
            check_copy(service["entrypoint"], mounts)
            check(not read_only, service)
            continue
        # Compose makes one $ of two, and a value of one.
        variables = {}
        for key, value in service["environment"].items():
            check("$" not in value.replace("$$", ""), key, value)
            variables[key] = value.replace("$$", "$")
        check_variables(variables, mounts)
        check(variables["RCSOCK_MEET_DIR"] not in read_only, service)
        check(service["depends_on"] == {"rcsock": {"condition": "service_completed_successfully"}}, service)
        check(name in ("redis", "client"), name)
    check(used == set(main["volumes"]), used, main["volumes"])
    check(len({str(main["services"][name]["environment"]) for name in ("redis", "client")}) == 1, "both ends")
    for name, service in files["rdma.yaml"][0]["services"].items():
        check(name in main["services"], name)
        check(service["devices"] == ["/dev/infiniband"] and service["ulimits"] == {"memlock": -1}, service)


def test_containerfile(page):
    """The two lines of the page are those that tools/dist writes."""
    text = page.read_text(encoding="utf-8")
    lines = re.search(r"^```dockerfile\n(.*?)^```", text, re.M | re.S).group(1).splitlines()
    made = pathlib.Path("tools/packaging/Containerfile").read_text(encoding="utf-8")
    check(lines[1] in made.splitlines(), lines)
    check(re.sub(r"--from=\S+", "--from=rcsock", lines[0]) in made.splitlines(), lines)


def main():
    kubernetes, compose = (pathlib.Path(path) for path in sys.argv[1:3])
    test_kubernetes(files_of(kubernetes))
    test_compose(files_of(compose))
    test_containerfile(compose)
    print("ok")


main()
