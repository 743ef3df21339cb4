#!/usr/bin/env python3
"""Runs deploy/aws/stack.yaml against moto's server, in network namespaces of this machine.

usage: mock.py PROGRAMS   (folder with ratewright, ratewright-allocator, ratewright-endpointd; as root)

It creates the stack, reads back what was made, writes the topology with `ratewright topology from-ec2`, and runs
the user data of the allocator and of two hosts, each in a namespace with an instance metadata service at
169.254.169.254. Then one TCP flow has to be paced to the bandwidth of the instance type. A second stack has its
certificates signed by a private authority: its allocator and a host have to make a session.
"""
import base64, ctypes, json, os, shutil, socket, subprocess, sys, tempfile, time
from pathlib import Path

import boto3, yaml

HERE = Path(__file__).resolve().parent
API = "http://10.77.0.1:5000"
REGION = "us-east-1"
HOST_TYPE, HOST_MBPS = "t3.micro", 64  # baseline of the type
HUB, PREFIX = "rwec2hub", "rwec2"
children = []


def run(*args, **more):
    return subprocess.run([str(a) for a in args], check=True, text=True, **more)


def said(*args):
    return run(*args, stdout=subprocess.PIPE).stdout


def spawn(*args, **more):
    child = subprocess.Popen([str(a) for a in args], start_new_session=True, **more)
    children.append(child)
    return child


def wait_for(what, check, seconds=30):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = check()
            if found:
                return found
        except Exception:  # not there yet: the time limit judges
            pass
        time.sleep(0.2)
    sys.exit(f"ec2-mock: no {what} after {seconds} s")


def network():
    run("ip", "netns", "add", HUB)
    for args in (["link", "set", "lo", "up"], ["link", "add", "br0", "type", "bridge"],
                 ["addr", "add", "10.77.0.1/24", "dev", "br0"], ["link", "set", "br0", "up"]):
        run("ip", "-n", HUB, *args)


def join(name, address):
    ns = PREFIX + name
    run("ip", "netns", "add", ns)
    run("ip", "-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", HUB)
    run("ip", "-n", HUB, "link", "set", "dev", name, "master", "br0", "up")
    for args in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", "eth0"],
                 ["link", "set", "eth0", "up"], ["addr", "add", "169.254.169.254/32", "dev", "lo"]):
        run("ip", "-n", ns, *args)
    return ns


def enter(namespace):
    """Moves this process into a network namespace (os.setns needs Python 3.12)."""
    if ctypes.CDLL(None, use_errno=True).setns(os.open(namespace, os.O_RDONLY), 0x40000000) != 0:
        sys.exit(f"ec2-mock: cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")


def inside(ns):
    return ["nsenter", f"--net=/run/netns/{ns}"]


# moto's metadata service tells every caller of one and the same instance; this fills in whose it is.
IMDS = """
import sys
from moto.instance_metadata import responses
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
responses.INSTANCE_METADATA.update({"instance-id": sys.argv[1], "placement/region": sys.argv[2]})
app = DomainDispatcherApplication(create_backend_app)
run_simple("169.254.169.254", 80, app, threaded=True)
"""

# What the instance would have: a service manager, in place of systemd.
SYSTEMCTL = """#!/bin/sh
[ "$1" = restart ] || exit 0
case $2 in
  ratewright-allocator) program=ratewright-allocator; config=allocator.toml ;;
  ratewright-endpointd) program=ratewright-endpointd; config=endpointd.toml ;;
esac
mkdir -p /run/ratewright /run/ratewright-allocator
setsid $program run --config /etc/ratewright/$config > "$LOGS/$program.log" 2>&1 < /dev/null &
echo $! > "$LOGS/pid"
"""


def boot(name, ns, instance_id, user_data, programs, work):
    """Runs cloud-config's write_files and runcmd in the instance's namespaces."""
    config = yaml.safe_load(user_data)
    assert user_data.startswith("#cloud-config\n")
    logs = work / name
    shims = logs / "bin"
    shims.mkdir(parents=True)
    (shims / "systemctl").write_text(SYSTEMCTL)
    (shims / "systemctl").chmod(0o755)
    script = ["set -e", "mount -t tmpfs none /run", "mkdir -p /etc/ratewright", "mount -t tmpfs none /etc/ratewright"]
    for number, file in enumerate(config["write_files"]):
        (logs / f"file{number}").write_text(file["content"])
        script.append(f"install -m {file['permissions']} {logs}/file{number} {file['path']}")
    for number, command in enumerate(config["runcmd"]):
        (logs / f"command{number}").write_text(json.dumps(command))
        script.append(f"{sys.executable} -c 'import json,subprocess,sys; "
                      f"sys.exit(subprocess.call(json.load(open(sys.argv[1]))))' {logs}/command{number}")
    imds = spawn(*inside(ns), sys.executable, "-c", IMDS, instance_id, REGION,
                 stdout=open(logs / "imds.log", "w"), stderr=subprocess.STDOUT)
    env = {"PATH": f"{shims}:{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(logs),
           "AWS_ENDPOINT_URL": API, "LOGS": str(logs)}  # credentials come from the metadata service
    (logs / "boot.sh").write_text("\n".join(script))
    run(*inside(ns), "unshare", "-m", "--propagation", "private", "bash", logs / "boot.sh", env=env, timeout=180)
    assert imds.poll() is None
    return int((logs / "pid").read_text())


def admin(pid, path, url):
    return json.loads(said("nsenter", "-t", pid, "-m", "-n", "curl", "-fsS", "--unix-socket", path, f"http://x{url}"))


SINK = "import socket;s=socket.create_server(('0.0.0.0',5201));c,_=s.accept()\nwhile c.recv(1<<16): pass"
SOURCE = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 5201)); end = time.monotonic() + 8; sent = 0
while time.monotonic() < end: sent += s.send(bytes(65536))
print(sent)
"""


def create(cfn, name, values):
    cfn.create_stack(StackName=name, TemplateBody=(HERE / "stack.yaml").read_text(), Capabilities=["CAPABILITY_IAM"],
                     Parameters=[dict(ParameterKey=k, ParameterValue=v) for k, v in values.items()])


def created(cfn, name):
    """Physical ids of a stack's resources."""
    stack = cfn.describe_stacks(StackName=name)["Stacks"][0]
    assert stack["StackStatus"] == "CREATE_COMPLETE", stack
    made = cfn.describe_stack_resources(StackName=name)["StackResources"]
    # moto answers an empty entry for each resource whose condition does not hold.
    ids = {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in made if "PhysicalResourceId" in r}
    print(f"ec2-mock: stack of {len(ids)} resources is {stack['StackStatus']}")
    return ids


def instances(ec2):
    return [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]


def upload_topology(s3, hosts, name, programs, work):
    """Writes the topology of instances out of what the AWS CLI prints of them, and puts it into the bucket."""
    aws = Path(sys.executable).parent / "aws"
    (work / "instances.json").write_text(said(aws, "ec2", "describe-instances", "--output", "json",
                                              "--instance-ids", *(i["InstanceId"] for i in hosts)))
    (work / "types.json").write_text(said(aws, "ec2", "describe-instance-types", "--output", "json",
                                          "--instance-types", HOST_TYPE))
    run(programs / "ratewright", "topology", "from-ec2", "--instances", work / "instances.json",
        "--types", work / "types.json", "--capacity", "baseline", "-o", work / name)
    s3.upload_file(str(work / name), "ratewright", name)


def user_data(ec2, template):
    version = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"][0]
    return base64.b64decode(version["LaunchTemplateData"]["UserData"]).decode()


def session(name, pid):
    wait_for(f"session of {name}",
             lambda: run("nsenter", "-t", pid, "-m", "-n", "curl", "-fsS", "-o", "/dev/null",
                         "--unix-socket", "/run/ratewright/endpointd.sock", "http://x/ready"))


def private_authority():
    """A root authority of ACM's; returns its ARN."""
    pca = boto3.client("acm-pca")
    subject = dict(KeyAlgorithm="RSA_2048", SigningAlgorithm="SHA256WITHRSA", Subject=dict(CommonName="ratewright-pca"))
    arn = pca.create_certificate_authority(CertificateAuthorityConfiguration=subject,
                                           CertificateAuthorityType="ROOT")["CertificateAuthorityArn"]
    csr = pca.get_certificate_authority_csr(CertificateAuthorityArn=arn)["Csr"]
    root = pca.issue_certificate(CertificateAuthorityArn=arn, Csr=csr.encode(), SigningAlgorithm="SHA256WITHRSA",
                                 TemplateArn="arn:aws:acm-pca:::template/RootCACertificate/V1",
                                 Validity=dict(Value=10, Type="YEARS"))["CertificateArn"]
    certificate = pca.get_certificate(CertificateAuthorityArn=arn, CertificateArn=root)["Certificate"]
    pca.import_certificate_authority_certificate(CertificateAuthorityArn=arn, Certificate=certificate.encode())
    return arn


def certificates_by_pca(clients, values, programs, work):
    """The stack with `Certificates` = acm-pca: an allocator and a host."""
    ec2, s3, cfn = clients
    before = {i["InstanceId"] for i in instances(ec2)}
    values = values | dict(Certificates="acm-pca", PcaArn=private_authority(), HostCount="1",
                           AllocatorAddress="10.77.0.201", TopologyUri="s3://ratewright/pca.toml")
    create(cfn, "ratewright-pca", values)
    ids = created(cfn, "ratewright-pca")
    made = [i for i in instances(ec2) if i["InstanceId"] not in before]
    host, = (i for i in made if i["InstanceType"] == HOST_TYPE)
    allocator, = (i for i in made if i != host)
    upload_topology(s3, [host], "pca.toml", programs, work)
    boot("pa", join("pa", "10.77.0.201"), allocator["InstanceId"], user_data(ec2, ids["AllocatorTemplate"]), programs, work)
    pid = boot("ph", join("ph", host["PrivateIpAddress"]), host["InstanceId"], user_data(ec2, ids["HostTemplate"]), programs, work)
    session("ph", pid)
    etc = said("nsenter", "-t", pid, "-m", "stat", "-c", "%a %n", *(f"/etc/ratewright/{file}" for file in (
        "ca.pem", f"{host['InstanceId']}.pem", f"{host['InstanceId']}.key")))
    modes = [line.split()[0] for line in etc.splitlines()]
    assert modes == ["644", "644", "600"], etc
    print("ec2-mock: user data ran: a host has a session under certificates from the private authority")


def main():
    programs = Path(sys.argv[1]).resolve()
    work = Path(tempfile.mkdtemp(prefix="rwec2."))
    network()
    spawn(*inside(HUB), Path(sys.executable).parent / "moto_server", "-H", "10.77.0.1", "-p", "5000",
          stdout=open(work / "moto.log", "w"), stderr=subprocess.STDOUT)
    # This process speaks to the mock from its namespace.
    enter(f"/run/netns/{HUB}")
    os.environ.update(AWS_ENDPOINT_URL=API, AWS_DEFAULT_REGION=REGION, AWS_ACCESS_KEY_ID="test",
                      AWS_SECRET_ACCESS_KEY="test")
    wait_for("mock", lambda: socket.create_connection(("10.77.0.1", 5000), 1))
    ec2, s3, ssm, cfn = (boto3.client(name) for name in ("ec2", "s3", "ssm", "cloudformation"))
    vpc = ec2.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.77.0.0/24")["Subnet"]["SubnetId"]
    s3.create_bucket(Bucket="ratewright")
    s3.upload_file(str(HERE / "ratewright-ec2-setup.sh"), "ratewright", "setup.sh")
    values = dict(VpcId=vpc, AllocatorSubnetId=subnet, AllocatorAddress="10.77.0.200", HostSubnetIds=subnet,
                  HostInstanceType=HOST_TYPE, SetupUri="s3://ratewright/setup.sh", Bucket="ratewright",
                  TopologyUri="s3://ratewright/topology.toml")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    ssm.put_parameter(Name="/test/image", Value=image, Type="String")
    values["ImageId"] = "/test/image"
    create(cfn, "ratewright", values)
    ids = created(cfn, "ratewright")

    # Read back.
    for template in ("AllocatorTemplate", "HostTemplate", "RelayTemplate"):
        version = ec2.describe_launch_template_versions(LaunchTemplateId=ids[template])["LaunchTemplateVersions"][0]
        data = version["LaunchTemplateData"]
        assert data["MetadataOptions"]["HttpTokens"] == "required", data
        assert "KEY--" not in base64.b64decode(data["UserData"]).decode()
    groups = ec2.describe_security_groups(GroupIds=[ids["AllocatorSecurityGroup"]])["SecurityGroups"]
    rules = groups[0]["IpPermissions"]
    ports = sorted((r["FromPort"], r["ToPort"]) for r in rules)
    assert ports == [(7600, 7600), (7601, 7601)], rules
    assert all(r["IpProtocol"] == "udp" and not r["IpRanges"] and r["UserIdGroupPairs"] for r in rules), rules
    found = instances(ec2)
    hosts = [i for i in found if i["InstanceType"] == HOST_TYPE]
    assert len(hosts) == 2 and len(found) == 3, found
    print("ec2-mock: read back: IMDSv2 required, UDP 7600 and 7601 from the hosts' group alone, 1 + 2 instances")

    # The topology out of what the CLI prints, and certificates in SSM.
    upload_topology(s3, hosts, "topology.toml", programs, work)
    names = ["ratewright-allocator"] + [i["InstanceId"] for i in hosts]
    run(programs / "ratewright", "certs", "init", "--dir", work / "certs", stdout=subprocess.DEVNULL)
    run(programs / "ratewright", "certs", "issue", "--dir", work / "certs",
        *[a for n in names for a in ("--name", n)], stdout=subprocess.DEVNULL)
    ssm.put_parameter(Name="/ratewright/ca", Type="String", Value=(work / "certs/ca.pem").read_text())
    for name in names:
        for part, end in (("certificate", "pem"), ("key", "key")):
            ssm.put_parameter(Name=f"/ratewright/{name}/{part}", Type="SecureString",
                              Value=(work / f"certs/{name}.{end}").read_text(),
                              Tags=[dict(Key="ratewright-instance", Value=name)])

    booted = {}
    allocator = next(i for i in found if i not in hosts)
    addresses = {"a": "10.77.0.200", "h1": hosts[0]["PrivateIpAddress"], "h2": hosts[1]["PrivateIpAddress"]}
    for name, instance, template in (("a", allocator, "AllocatorTemplate"), ("h1", hosts[0], "HostTemplate"),
                                     ("h2", hosts[1], "HostTemplate")):
        ns = join(name, addresses[name])
        booted[name] = boot(name, ns, instance["InstanceId"], user_data(ec2, ids[template]), programs, work)
    for name in ("h1", "h2"):
        session(name, booted[name])
    print("ec2-mock: user data ran: both hosts have sessions under certificates from SSM")

    sink = spawn(*inside(PREFIX + "h2"), sys.executable, "-c", SINK)
    time.sleep(1)
    source = spawn(*inside(PREFIX + "h1"), sys.executable, "-c", SOURCE, addresses["h2"], stdout=subprocess.PIPE)
    time.sleep(5)
    flows = admin(booted["a"], "/run/ratewright-allocator/admin.sock", f"/flows?host={hosts[0]['InstanceId']}")
    sockets = said(*inside(PREFIX + "h1"), "ss", "-tin", "dport", "=", ":5201")
    sent = int(source.communicate(timeout=30)[0])
    sink.wait(timeout=10)
    mbps = sent * 8 / 8e6
    print("ec2-mock: /flows:", json.dumps(flows["flows"]))
    print("ec2-mock: ss:", " ".join(sockets.split()[-60:]))
    print(f"ec2-mock: the flow got {mbps:.1f} Mbit/s; the baseline of {HOST_TYPE} is {HOST_MBPS}")
    rate = flows["flows"][0]["rate_bps"] / 1e6
    assert 0.97 * HOST_MBPS < rate <= HOST_MBPS, rate
    assert 0.85 * HOST_MBPS < mbps < 1.1 * HOST_MBPS, mbps
    certificates_by_pca((ec2, s3, cfn), values, programs, work)
    print("ec2-mock: passed")
    shutil.rmtree(work)


def clean():
    for name in ("a", "h1", "h2", "pa", "ph"):
        pids = subprocess.run(["ip", "netns", "pids", PREFIX + name], capture_output=True, text=True).stdout.split()
        for pid in pids:
            subprocess.run(["kill", "-TERM", pid], stderr=subprocess.DEVNULL)
    for child in children:
        child.terminate()
    time.sleep(1)
    for child in children:
        child.kill()
    for name in ("hub", "a", "h1", "h2", "pa", "ph"):
        subprocess.run(["ip", "netns", "del", PREFIX + name], stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    try:
        main()
    finally:
        clean()
