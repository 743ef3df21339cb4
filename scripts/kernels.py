#!/usr/bin/env python3
"""Runs the probe, the back ends' tests and the lab on Debian's kernels, and two guests of different kernels together.

usage: scripts/kernels.py [--doc FILE] [--bin-dir DIR] [--seconds N] [--tests NAMES] [--pair A,B] [SERIES...]

SERIES are those of scripts/guest.sh (default: 6.1 6.12 newest). Programs and tests are built by cargo. What was found
is written into FILE (docs/operating/kernels.md), between its two marks: a kernel's own section is replaced, others stay.
"""
import argparse, datetime, json, os, re, shutil, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Modules of the daemon's integration tests, and what each is about.
BACK_ENDS = {"backends::probe": "both", "backends::flowlets": "sock_ops", "backends::own_maximum": "sock_ops",
             "backends::sock_ops": "sock_ops", "backends::tc_htb": "tc_htb", "backends::observe": "both",
             "pods": "sock_ops", "lab": "as chosen"}
TESTS = [name for name in BACK_ENDS if name != "lab"]
PROGRAMS = ["ratewright", "ratewright-allocator", "ratewright-endpointd", "ratewright-lab"]
BEGIN, END = "<!-- results: scripts/kernels.py writes from here -->", "<!-- to here -->"


def cargo(*args):
    output = subprocess.run(["cargo", *args, "--locked", "--message-format=json"], cwd=ROOT, check=True, text=True,
                            stdout=subprocess.PIPE).stdout
    made = (json.loads(line) for line in output.splitlines() if line.startswith("{"))
    return {m["target"]["name"]: m["executable"] for m in made if m.get("executable")}


def gather(folder, suites):
    """Puts stripped programs and tests into the folder that the guests see."""
    # The whole workspace: with a choice of packages cargo would compile their dependencies again, for other features.
    made = cargo("build", "--workspace", "--bins", "--examples")
    for name in PROGRAMS:
        subprocess.run(["strip", "-o", folder / name, made[name]], check=True)
    # The tests start the daemon by the path that it was built at.
    (folder / "daemon-path").write_text(made["ratewright-endpointd"])
    (folder / "suites").write_text("".join(f"{suite}\n" for suite in suites))
    if suites:
        made = cargo("test", "--no-run", "--workspace", "--test=integration")
        subprocess.run(["strip", "-o", folder / "integration", made["integration"]], check=True)


def guest(series, folder, seconds, **more):
    env = dict(os.environ, GUEST_SECONDS=str(seconds), **more)
    return subprocess.Popen([ROOT / "scripts/guest.sh", series, folder], env=env, text=True, stdout=subprocess.PIPE)


def cpus(series):
    """Processors of a kernel's guest. With a steady clock, emulation does not get Linux 6.1 beyond the first."""
    return 1 if series == "6.1" else 2


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def section(series, text):
    """The markdown of one kernel, from what its guest printed."""
    release = (re.search(r"^release (\S+)", text, re.M) or [0, "none: the guest said nothing"])[1]
    how = (ROOT / "target/guest/accel").read_text().strip()
    how = {"kvm": "With KVM", "tcg": "By QEMU's emulation, whose clock counts instructions"}[how]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, stdout=subprocess.PIPE).stdout
    lines = [f"### Linux {release}", "",
             f"{datetime.date.today()}, {processor()}; commit {commit.strip()}.",
             f"{how}; processors of the guest: {cpus(series)}.", ""]
    probe = re.search(r"^(mechanism .*?)^probe \d+$", text, re.M | re.S)
    lines += ["```", *(probe[1].rstrip().splitlines() if probe else ["the probe said nothing"]), "```", "",
              "| back end | suite | passed | failed | seconds | which failed, and what it said first |", "|---|---|---|---|---|---|"]
    seen = set()
    for match in re.finditer(r"^result (\S+) (\d+) (\d+) (\d+) ?(.*)$", text, re.M):
        name, passed, failed, seconds, which = match.groups()
        seen.add(name)
        why = []
        for test in which.split():
            said = re.search(rf"thread '{re.escape(test)}' .*?panicked at [^\n]*\n([^\n]*)",
                             text[match.end():])
            if "Unavailable {" in (said[1] if said else ""):
                said = re.search(r'(reason: "[^"]*")', said[1])
            test = test.removeprefix(f"{name}::")
            why.append(f"`{test}`: {said[1].strip().removeprefix('three times: ').split(';')[0][:90]}" if said else test)
        # A back end that the kernel does not have fails every test in the same words.
        said = {words.split(": ", 1)[-1] for words in why}
        if len(why) > 2 and len(said) == 1:
            why = [f"all of them: {said.pop()}"]
        lines.append(f"| {BACK_ENDS.get(name, '')} | {name} | {passed} | {failed} | {seconds} | "
                     + "; ".join(why).replace("|", "\\|") + " |")
    for name in BACK_ENDS:
        if name not in seen:
            lines.append(f"| {BACK_ENDS[name]} | {name} | | | | not run, or not finished in the time given |")
    return f"<!-- {series} -->", "\n".join(lines) + "\n"


def is_promised(suite, text):
    """True if the probe in a guest calls usable what a suite is about."""
    refused = re.findall(r"^(sock_ops|tc_htb) +no ", text, re.M)
    about = BACK_ENDS[suite]
    return not refused if about == "both" else about not in refused


def write(doc, found):
    text = doc.read_text()
    head, rest = text.split(BEGIN)
    middle, tail = rest.split(END)
    for mark, body in found:
        kept = re.split(r"(?=^<!-- \S+ -->$)", middle, flags=re.M)
        kept = [part for part in kept if part.strip() and not part.startswith(mark)]
        middle = "\n" + "".join(part.strip() + "\n\n" for part in kept) + f"{mark}\n{body}\n"
    doc.write_text(head + BEGIN + middle + END + tail)


def pair(folder, kernels, seconds):
    """Two guests of different kernels on one link, allocator and daemon in the first, a daemon in the second."""
    first, second = kernels
    with tempfile.TemporaryDirectory() as sockets:
        share = Path(sockets) / "share"
        share.mkdir()
        for name in PROGRAMS[:3]:
            shutil.copy(folder / name, share / name)
        pki = share / "pki"
        run = lambda *args: subprocess.run([str(a) for a in args], check=True, stdout=subprocess.DEVNULL)
        run(share / "ratewright", "certs", "init", "--dir", pki)
        run(share / "ratewright", "certs", "issue", "--dir", pki, "--name", "ratewright-allocator", "--name", "h1",
            "--name", "h2")
        run(share / "ratewright", "topology", "build", "big-switch", "--racks", 1, "--hosts-per-rack", 2,
            "--host-capacity", "5Mbit/s", "--ipv6-base", "none", "-o", share / "topology.toml")
        shutil.copy(ROOT / "deploy/guests/pair.sh", share / "suite")
        guests = []
        for number, series in enumerate((first, second), 1):
            mine = Path(sockets) / f"share{number}"
            shutil.copytree(share, mine)
            (mine / "run").write_text(f"#!/bin/sh\nexec sh /mnt/share/suite {number}\n")
            (mine / "run").chmod(0o755)
            ends = f"local.type=unix,local.path={sockets}/{number},remote.type=unix,remote.path={sockets}/{3 - number}"
            net = (f"-netdev dgram,id=n,{ends} -device virtio-net-pci,netdev=n,mac=52:54:00:00:00:0{number}")
            guests.append(guest(series, mine, seconds, GUEST_NET=net))
        said = [child.communicate()[0] for child in guests]
        good = all(child.returncode == 0 for child in guests)
    lines = ["### Two guests on one link", "", f"{datetime.date.today()}; {'as it should be' if good else 'FAILED'}.", ""]
    lines += ["```", *[line for text in said for line in text.splitlines()], "```"]
    return "<!-- pair -->", "\n".join(lines) + "\n", good


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("series", nargs="*", default=["6.1", "6.12", "newest"])
    options.add_argument("--doc", type=Path, default=ROOT / "docs/operating/kernels.md")
    options.add_argument("--seconds", type=int, default=3600, help="for one guest, at most")
    options.add_argument("--tests", default=",".join(TESTS), help="suites, separated by commas; may be empty")
    options.add_argument("--pair", default="6.1,newest", help="kernels of the two guests; empty for none")
    options = options.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "share"
        folder.mkdir()
        gather(folder, [name for name in options.tests.split(",") if name])
        shutil.copy(ROOT / "deploy/guests/suite.sh", folder / "run")
        for series in [] if options.series == ["none"] else options.series:
            text = guest(series, folder, options.seconds, GUEST_CLOCK="steady",
                         GUEST_CPUS=str(cpus(series))).communicate()[0]
            print(text, flush=True)
            mark, body = section(series, text)
            failed |= "not run, or not" in body or any(
                int(m[2]) for m in re.finditer(r"^result (\S+) \d+ (\d+) ", text, re.M) if is_promised(m[1], text))
            write(options.doc, [(mark, body)])
        if options.pair:
            mark, body, good = pair(folder, options.pair.split(","), options.seconds)
            print(body, flush=True)
            failed |= not good
            write(options.doc, [(mark, body)])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
