#!/usr/bin/env python3
"""Checks deploy/aws without a cloud: lint, rules, user data, Terraform, and the fixtures of `topology from-ec2`.

usage: check.py SCHEMA   (cloud-init's schema-cloud-config-v1.json; `scripts/setup.sh ec2` fetches it)
"""
import copy, json, os, re, shutil, subprocess, sys, tempfile
from pathlib import Path

import botocore.session, cfn_guard_rs, hcl2, jsonschema, yaml
from cfnlint.decode import decode

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "cli/tests/fixtures/ec2"
BIN = Path(sys.executable).parent
USER_DATA_BYTES = 16384  # EC2's bound, before base64
failures = []


def check(what, good, why=""):
    print(f"ec2-check: {'ok  ' if good else 'FAIL'} {what}{'' if good else ': ' + str(why)}")
    if not good:
        failures.append(what)


def program(what, *args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    check(what, done.returncode == 0, done.stdout + done.stderr)


def guard(template):
    """Returns the names of the rules that a template breaks."""
    report = cfn_guard_rs.run_checks(template, (HERE / "rules.guard").read_text())
    return {name for name in re.findall(r"rule (\w+)", (HERE / "rules.guard").read_text())
            if name in str(report.not_compliant)}


def break_and_guard(template, rule, change):
    broken = copy.deepcopy(template)
    change(broken["Resources"])
    check(f"rule {rule} notices its breach", rule in guard(broken), guard(broken))


def template_of(name):
    return lambda resources: resources[name]["Properties"]["LaunchTemplateData"]


def substituted(text, values):
    return re.sub(r"\$\{(\w+)\}", lambda m: str(values[m.group(1)]), text)


def user_data(what, text, schema):
    check(f"{what}: begins as cloud-config", text.startswith("#cloud-config\n"))
    check(f"{what}: at most 16 KiB", len(text.encode()) <= USER_DATA_BYTES)
    errors = [e.message for e in jsonschema.Draft4Validator(schema).iter_errors(yaml.safe_load(text))]
    check(f"{what}: cloud-init's schema", not errors, errors)


def shape(model, value, path):
    """Yields where a value differs from a shape of the service's model."""
    kind = {"structure": dict, "list": list, "string": str, "boolean": bool, "integer": int,
            "long": int, "double": (int, float), "float": (int, float), "timestamp": str}[model.type_name]
    if value is None and model.type_name == "list":
        return  # DescribeInstanceTopology: null network nodes of unsupported types
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        yield f"{path}: {value!r} is no {model.type_name}"
    elif model.type_name == "structure":
        for key, item in value.items():
            if key not in model.members:
                yield f"{path}: {model.name} has no member {key}"
            else:
                yield from shape(model.members[key], item, f"{path}.{key}")
    elif model.type_name == "list":
        for number, item in enumerate(value):
            yield from shape(model.member, item, f"{path}[{number}]")
    elif getattr(model, "enum", None) and value not in model.enum:
        yield f"{path}: {value!r} is none of {model.name}"


def fixtures():
    service = botocore.session.get_session().get_service_model("ec2")
    for file, operation in (("instances", "DescribeInstances"), ("topology", "DescribeInstanceTopology"),
                            ("types", "DescribeInstanceTypes"), ("placement-groups", "DescribePlacementGroups")):
        output = service.operation_model(operation).output_shape
        errors = list(shape(output, json.loads((FIXTURES / f"{file}.json").read_text()), file))
        check(f"fixture {file}.json has the shape of {operation}", not errors, errors)
    wrong = {"Reservations": [{"Instances": [{"InstanceId": 3, "Nonsense": 1}]}]}
    output = service.operation_model("DescribeInstances").output_shape
    check("a wrong shape is noticed", len(list(shape(output, wrong, "wrong"))) == 2)


def plain(text):
    return text.strip('"') if isinstance(text, str) else text


def terraform(schema):
    folder = HERE / "terraform"
    files = sorted(folder.glob("*.tf"))
    declared, text = set(), ""
    for file in files:
        text += file.read_text()
        parsed = hcl2.loads(file.read_text())
        declared |= {plain(name) for block in parsed.get("variable", []) for name in block if not name.startswith("__")}
    used = set(re.findall(r"\bvar\.(\w+)", text))
    check("terraform: every variable is declared and used", declared == used, declared ^ used)
    if shutil.which("terraform"):
        program("terraform fmt", "terraform", f"-chdir={folder}", "fmt", "-check", "-diff")
        terraform_validate(files)
    else:
        print("ec2-check: NOT RUN: terraform fmt, since there is no terraform here")
    values = {name: "x" for name in re.findall(r"\$\{(\w+)\}", (folder / "user-data.yaml.tftpl").read_text())}
    user_data("terraform user data", substituted((folder / "user-data.yaml.tftpl").read_text(), values), schema)


def terraform_validate(files):
    """Has the AWS provider check the module, out of a folder of plug-ins: nothing is fetched."""
    plugins = os.environ.get("TERRAFORM_PLUGINS")
    if not plugins:
        print("ec2-check: NOT RUN: terraform validate, since TERRAFORM_PLUGINS names no folder with the AWS provider")
        return
    with tempfile.TemporaryDirectory() as work:
        for file in [*files, HERE / "terraform/user-data.yaml.tftpl"]:
            shutil.copy(file, work)
        program("terraform init", "terraform", f"-chdir={work}", "init", "-input=false", "-no-color", f"-plugin-dir={plugins}")
        program("terraform validate", "terraform", f"-chdir={work}", "validate", "-no-color")
        with open(Path(work) / "outputs.tf", "a") as file:
            file.write('\noutput "none" { value = aws_launch_template.this["host"].nonsense }\n')
        broken = subprocess.run(["terraform", f"-chdir={work}", "validate", "-no-color"], capture_output=True, text=True)
        check("terraform validate notices an attribute that is not there", broken.returncode == 1, broken.stderr)


def main():
    schema = json.loads(Path(sys.argv[1]).read_text())
    program("shellcheck", BIN / "shellcheck", HERE / "ratewright-ec2-setup.sh")
    program("cfn-lint", BIN / "cfn-lint", "-r", "us-east-1", "eu-north-1", "-t", HERE / "stack.yaml")
    template = json.loads(json.dumps(decode(str(HERE / "stack.yaml"))[0]))
    check("cfn-guard", not guard(template), guard(template))
    host = template_of("HostTemplate")
    break_and_guard(template, "imds_v2_is_required",
                    lambda r: host(r)["MetadataOptions"].update(HttpTokens="optional"))
    break_and_guard(template, "ingress_is_of_a_group_and_udp",
                    lambda r: r["QuicIngress"]["Properties"].update(CidrIp="0.0.0.0/0"))
    break_and_guard(template, "groups_have_no_ingress_of_their_own",
                    lambda r: r["HostSecurityGroup"]["Properties"].update(SecurityGroupIngress=[{"CidrIp": "0.0.0.0/0"}]))
    break_and_guard(template, "no_key_in_user_data",
                    lambda r: host(r)["UserData"]["Fn::Base64"].update({"Fn::Sub": "-----BEGIN PRIVATE KEY-----"}))
    misspelt = {"write_files": [{"path": "/a", "permisions": "0600"}]}
    check("cloud-init's schema notices a misspelt key",
          any(jsonschema.Draft4Validator(schema).iter_errors(misspelt)))
    values = {name: p.get("Default", "10.0.0.10" if name == "AllocatorAddress" else "s3://b/x")
              for name, p in template["Parameters"].items()}
    for name in ("AllocatorTemplate", "HostTemplate", "RelayTemplate"):
        data = template_of(name)(template["Resources"])["UserData"]["Fn::Base64"]["Fn::Sub"]
        user_data(f"{name} user data", substituted(data, values), schema)
    fixtures()
    terraform(schema)
    sys.exit(f"ec2-check: {len(failures)} failed" if failures else 0)


main()
