import json
import re
import shutil
import subprocess

import pytest

from serfer.sam.options import digest12
from tests.sam.offered import POOL, POOLED, every_template, of_type, plans, template

EVERYWHERE = "0.0.0.0/0"
SECRET = re.compile(r"(?i)secret|password|token|credential|private_?key|access_?key")


@pytest.mark.who_may
def test_stored_data_is_encrypted_and_private():
    for _chosen, source in every_template():
        for bucket in of_type(source, "AWS::S3::Bucket").values():
            properties = bucket["Properties"]
            assert properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
            assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
            assert properties["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
            assert "BucketName" not in properties
        for bucket in of_type(source, "AWS::S3Express::DirectoryBucket").values():
            assert bucket["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        for disk in of_type(source, "AWS::EC2::LaunchTemplate").values():
            (mapping,) = disk["Properties"]["LaunchTemplateData"]["BlockDeviceMappings"]
            assert (mapping["Ebs"]["Encrypted"], mapping["Ebs"]["VolumeType"]) == (True, "gp3")
        for topic in of_type(source, "AWS::SNS::Topic").values():
            assert topic["Properties"]["KmsMasterKeyId"] == {"Ref": "AlarmKey"}


@pytest.mark.who_may
def test_buckets_answer_by_tls_only():
    for _chosen, source in every_template():
        buckets = {**of_type(source, "AWS::S3::Bucket"), **of_type(source, "AWS::S3Express::DirectoryBucket")}
        policies = [*of_type(source, "AWS::S3::BucketPolicy").values()]
        policies += of_type(source, "AWS::S3Express::BucketPolicy").values()
        refused = {
            policy["Properties"]["Bucket"]["Ref"]
            for policy in policies
            for one in policy["Properties"]["PolicyDocument"]["Statement"]
            if one["Effect"] == "Deny" and one["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        }
        assert refused == set(buckets)


@pytest.mark.who_may
def test_only_the_balancer_is_reached_from_outside_and_by_https():
    for chosen, source in every_template():
        open_to_all = [
            (name, rule["FromPort"], rule["ToPort"], rule["CidrIp"])
            for name, group in of_type(source, "AWS::EC2::SecurityGroup").items()
            for rule in group["Properties"].get("SecurityGroupIngress", ())
        ]
        for rule in of_type(source, "AWS::EC2::SecurityGroupIngress").values():
            assert "SourceSecurityGroupId" in rule["Properties"]
        https = [("BalancerGroup", 443, 443, {"Ref": "AllowedCidr"})]
        assert open_to_all == (https if chosen[0] == "fleet" else [])
        assert all(
            (listener["Properties"]["Protocol"], listener["Properties"]["SslPolicy"][:28])
            == ("HTTPS", "ELBSecurityPolicy-TLS13-1-2-")
            for listener in of_type(source, "AWS::ElasticLoadBalancingV2::Listener").values()
        )


@pytest.mark.who_may
def test_security_groups_allow_only_listed_egress():
    for chosen, source in every_template():
        outward = [
            (name, rule["IpProtocol"], rule["ToPort"], rule.get("CidrIp"))
            for name, group in of_type(source, "AWS::EC2::SecurityGroup").items()
            for rule in group["Properties"]["SecurityGroupEgress"]
        ]
        outward += [
            (rule["GroupId"]["Ref"], "tcp", rule["ToPort"], rule.get("CidrIp"))
            for rule in (found["Properties"] for found in of_type(source, "AWS::EC2::SecurityGroupEgress").values())
        ]
        wide = [rule for rule in outward if rule[3] not in {None, "127.0.0.1/32"}]
        keeps = "ResultsBucket" in source["Resources"]
        serves = "SERFER_REGISTRY" in json.dumps(source["Resources"])
        driver = chosen[0] == "fleet" or ((keeps or serves) and "DriversGroup" in source["Resources"])
        there = {"DriversGroup": driver, "GpuSecurityGroup": "GpuSecurityGroup" in source["Resources"]}
        fetches = keeps or "WeightsBucket" in source["Resources"]
        there["WorkersGroup"] = "WorkersGroup" in source["Resources"] and fetches
        to_s3 = {(name, "tcp", 443, EVERYWHERE) for name, reaches in there.items() if reaches}
        assert set(wide) == to_s3
        assert not to_s3 or "EndpointS3" in source["Resources"]


@pytest.mark.who_may
def test_private_subnets_have_no_way_out_and_nothing_gets_a_public_address():
    for _chosen, source in every_template():
        assert not of_type(source, "AWS::EC2::NatGateway")
        for route in of_type(source, "AWS::EC2::Route").values():
            assert route["Properties"]["RouteTableId"] == {"Ref": "PublicRoutes"}
        for subnet in of_type(source, "AWS::EC2::Subnet").values():
            assert subnet["Properties"]["MapPublicIpOnLaunch"] is False
        for resource in of_type(source, "AWS::EC2::LaunchTemplate").values():
            (interface,) = resource["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
            assert interface["AssociatePublicIpAddress"] is False
        for group in of_type(source, "AWS::AutoScaling::AutoScalingGroup").values():
            subnets = [subnet["Ref"] for subnet in group["Properties"]["VPCZoneIdentifier"]]
            assert subnets == ["PrivateSubnetA", "PrivateSubnetB"]


@pytest.mark.who_may
def test_instances_want_signed_questions_for_their_metadata_and_have_no_key_pair():
    launched = of_type(template(*POOLED, gpu=POOL), "AWS::EC2::LaunchTemplate")
    assert len(launched) == 3  # the drivers', and one of each plan
    for one in launched.values():
        data = one["Properties"]["LaunchTemplateData"]
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
        assert "KeyName" not in data


@pytest.mark.who_may
def test_gpu_instances_are_reached_by_drivers_at_their_port_alone():
    source = template(*POOLED, gpu=POOL)
    rules = of_type(source, "AWS::EC2::SecurityGroupIngress").values()
    inward = [one["Properties"] for one in rules if one["Properties"]["GroupId"] == {"Ref": "GpuSecurityGroup"}]
    assert [(one["SourceSecurityGroupId"], one["FromPort"], one["ToPort"]) for one in inward] == [
        ({"Ref": "DriversGroup"}, 8000, 8000)
    ]
    assert "SecurityGroupIngress" not in source["Resources"]["GpuSecurityGroup"]["Properties"]
    for name, one in of_type(source, "AWS::EC2::LaunchTemplate").items():
        (interface,) = one["Properties"]["LaunchTemplateData"]["NetworkInterfaces"]
        assert interface["Groups"] == [{"Ref": "GpuSecurityGroup" if name.startswith("Gpu") else "DriversGroup"}]


@pytest.mark.who_may
def test_the_api_wants_a_key_for_everything_throttles_and_logs_no_request():
    source = template()
    methods = of_type(source, "AWS::ApiGateway::Method")
    assert len(methods) == 2
    assert all(method["Properties"]["ApiKeyRequired"] is True for method in methods.values())
    api = source["Resources"]["Api"]["Properties"]
    assert (api["SecurityPolicy"], api["EndpointAccessMode"]) == ("SecurityPolicy_TLS13_1_2_2021_06", "STRICT")
    assert api["BinaryMediaTypes"] == ["*/*"]
    (settings,) = source["Resources"]["ApiStage"]["Properties"]["MethodSettings"]
    assert settings["DataTraceEnabled"] is False
    assert settings["ThrottlingRateLimit"] == {"Ref": "ThrottleRate"}
    plan = source["Resources"]["ApiPlan"]["Properties"]
    assert plan["Quota"] == {"Limit": {"Ref": "MonthlyQuota"}, "Period": "MONTH"}
    (permission,) = of_type(source, "AWS::Lambda::Permission").values()
    assert permission["Properties"]["SourceArn"]["Fn::Sub"].endswith(":${Api}/v/*")


@pytest.mark.hostile
@pytest.mark.who_may
def test_the_balancers_firewall_throttles_and_refuses_malformed_requests():
    source = template("fleet", "s3", "push")
    (rule,) = source["Resources"]["Firewall"]["Properties"]["Rules"]
    assert rule["Action"].keys() == {"Block"}
    assert rule["Statement"]["RateBasedStatement"]["Limit"] == {"Ref": "RequestsPerFiveMinutes"}
    assert source["Resources"]["FirewallAssociation"]["Properties"]["ResourceArn"] == {"Ref": "Balancer"}
    alarm = source["Resources"]["RequestsBlocked"]["Properties"]
    watched = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
    named = [source["Resources"]["Firewall"]["Properties"], rule]
    names = [one["VisibilityConfig"]["MetricName"] for one in named]
    assert names == [watched["WebACL"], watched["Rule"]]
    assert all(name["Fn::Sub"].startswith("${AWS::StackName}-") for name in names)  # another stack has others
    attributes = {
        one["Key"]: one["Value"] for one in source["Resources"]["Balancer"]["Properties"]["LoadBalancerAttributes"]
    }
    assert attributes["routing.http.drop_invalid_header_fields.enabled"] == "true"
    assert attributes["deletion_protection.enabled"] == "false"


@pytest.mark.who_may
def test_no_secret_is_in_a_template():
    for _chosen, source in every_template():
        for function in of_type(source, "AWS::Serverless::Function").values():
            for name, value in function["Properties"].get("Environment", {}).get("Variables", {}).items():
                assert not SECRET.search(name + json.dumps(value))
        for parameter in source["Parameters"].values():
            assert not SECRET.search(parameter["Description"])
        for value in source["Outputs"].values():
            assert not SECRET.search(json.dumps(value["Value"]))


@pytest.mark.who_may
def test_logs_go_after_their_time_and_to_groups_of_the_stack():
    for _chosen, source in every_template():
        groups = of_type(source, "AWS::Logs::LogGroup")
        own = {"DriverLog", *(["WorkersLog"] if "WorkerRole" in source["Resources"] else [])}
        assert groups.keys() - {"GpuLog", "UploadersLog"} == own
        assert ("UploadersLog" in groups) == ("UploaderRole" in source["Resources"])
        assert ("GpuLog" in groups) == ("GpuRole" in source["Resources"])
        assert all(one["Properties"]["RetentionInDays"] == {"Ref": "LogRetentionDays"} for one in groups.values())
        for function in of_type(source, "AWS::Serverless::Function").values():
            assert function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"] in groups


@pytest.mark.who_may
def test_nothing_remains_after_stack_deletion():
    for _chosen, source in every_template():
        for name, resource in source["Resources"].items():
            assert resource.get("DeletionPolicy", "Delete") == "Delete", name
            assert resource.get("UpdateReplacePolicy", "Delete") == "Delete", name
        for cache in of_type(source, "AWS::ElastiCache::ServerlessCache").values():
            assert cache["Properties"]["SnapshotRetentionLimit"] == 0


@pytest.mark.who_may
def test_stored_data_expires_and_spending_is_bounded():
    for chosen, source in every_template():
        store = source["Resources"].get("StoreBucket") or source["Resources"].get("StoreDirectory")
        if store:
            (rule,) = store["Properties"]["LifecycleConfiguration"]["Rules"]
            assert (rule["Status"], rule["ExpirationInDays"]) == ("Enabled", 1)
            assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
        elif source["Outputs"]["Store"]["Value"] != "memory://":
            limits = source["Resources"]["Cache"]["Properties"]["CacheUsageLimits"]
            assert limits["DataStorage"]["Maximum"] == {"Ref": "CacheGigabytes"}, chosen
            assert limits["ECPUPerSecond"]["Maximum"] == {"Ref": "CacheUnitsPerSecond"}


@pytest.mark.who_may
def test_a_public_cache_has_no_network_and_admits_the_stacks_roles_by_iam_alone():
    source = template("function", "valkey-public", "push")
    made = source["Resources"]
    assert not [name for name, one in made.items() if one["Type"].startswith("AWS::EC2") or "VpcConfig" in str(one)]
    cache, user = made["Cache"]["Properties"], made["CacheUser"]["Properties"]
    assert (cache["Engine"], cache["MajorEngineVersion"], cache["ConnectionType"]) == ("valkey", "9", "public")
    assert not {"SubnetIds", "SecurityGroupIds"} & cache.keys()
    assert user["AuthenticationMode"] == {"Type": "iam"}
    assert made["CacheUsers"]["Properties"]["UserIds"] == [{"Ref": "CacheUser"}]
    own = [{"Fn::GetAtt": ["Cache", "ARN"]}, {"Fn::GetAtt": ["CacheUser", "Arn"]}]
    for role in ("WorkerRole", "DriverRole"):
        [policy] = made[role]["Properties"]["Policies"]
        logins = [one for one in policy["PolicyDocument"]["Statement"] if one["Action"] == "elasticache:Connect"]
        assert [one["Resource"] for one in logins] == [own]
        assert "ec2:" not in str(policy)
    private = template("function", "valkey", "push")["Resources"]["Cache"]["Properties"]
    assert (private["MajorEngineVersion"], "ConnectionType" in private) == ("8", False)


@pytest.mark.who_may
def test_alarms_are_optional_and_name_their_runbook_entry():
    dear = ("AWS::CloudWatch::Alarm", "AWS::Logs::MetricFilter", "AWS::SNS::Topic", "AWS::KMS::Key")
    for _chosen, source in every_template():
        for name, resource in source["Resources"].items():
            if resource["Type"] in dear:
                assert resource["Condition"] == "HasAlarms", name
            if resource["Type"] == "AWS::CloudWatch::Alarm":
                description = resource["Properties"]["AlarmDescription"]
                assert re.search(r"\. docs/how-to/operate\.md, runbook: [a-z-]+$", description)
                assert resource["Properties"]["TreatMissingData"] == "notBreaching"
        assert source["Resources"]["Budget"]["Condition"] == "HasBudget"
        (tag,) = source["Resources"]["Budget"]["Properties"]["Budget"]["CostFilters"]["TagKeyValue"]
        assert tag == {"Fn::Sub": "user:serfer:stack$${AWS::StackName}"}


GPU = f"GpuTemplate{digest12(plans()[0])}"
BOTH = pytest.mark.parametrize("kind", ["DriverTemplate", GPU])


def script(kind="DriverTemplate"):
    """Return what an instance runs when it starts, with something in every place."""
    source = template("fleet", "valkey", "push", gpu=POOL)
    data = source["Resources"][kind]["Properties"]["LaunchTemplateData"]
    text, _ = data["UserData"]["Fn::Base64"]["Fn::Sub"]
    return re.sub(r"\$\{[A-Za-z:]+\}", "something", text)


@pytest.mark.who_may
@BOTH
def test_an_instances_script_is_sound_and_short_enough(kind, tmp_path):
    path = tmp_path / "user-data.sh"
    path.write_text(script(kind), encoding="utf-8")
    checked = subprocess.run([shutil.which("bash"), "-n", path], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert len(script(kind)) + 4096 < 16_384  # EC2's limit, and what may take its places
    assert "@" not in script(kind).replace("@system-service", "")


@pytest.mark.who_may
@BOTH
def test_an_instances_log_is_cut_off_each_hour_and_sent_to_its_group(kind, tmp_path):
    text = script(kind)
    logs = re.search(r"^logs\(\) \{.*?^\}\nlogs \w+ 'something'$", text, re.DOTALL | re.MULTILINE)[0]
    agent = tmp_path / "opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
    for place in (agent.parent, tmp_path / "opt/serfer", tmp_path / "etc/logrotate.d"):
        place.mkdir(parents=True)
    agent.write_text("#!/bin/bash\nexit 0\n", encoding="utf-8")
    agent.chmod(0o755)
    moved = re.sub(r"(?<=[ :])/(etc|opt)/", rf"{tmp_path}/\1/", logs)
    subprocess.run([shutil.which("bash"), "-euc", moved], check=True)
    document = json.loads((tmp_path / "opt/serfer/agent.json").read_text(encoding="utf-8"))
    [one] = document["logs"]["logs_collected"]["files"]["collect_list"]
    assert (one["log_group_name"], one["log_stream_name"]) == ("something", "{instance_id}")
    assert one["file_path"] in text.replace(logs, "")  # what the unit writes
    assert (tmp_path / "etc/logrotate.d/serfer").read_text(encoding="utf-8").startswith(f"{one['file_path']} {{\n")
    hourly = tmp_path / "etc/systemd/system/logrotate.timer.d/hourly.conf"
    assert "OnCalendar=hourly" in hourly.read_text(encoding="utf-8")


@pytest.mark.who_may
@pytest.mark.parametrize("refused", [False, True], ids=["in-its-group", "in-the-warm-pool"])
def test_an_instance_that_cannot_serve_is_not_replaced_by_another_one(refused, tmp_path):
    text = script(GPU).replace("/opt/serfer", str(tmp_path))
    for name, written in re.findall(rf"cat > {tmp_path}/(\w+) <<'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE):
        (tmp_path / name).write_text(written, encoding="utf-8")
    (tmp_path / "metadata").write_text("#!/bin/bash\necho i-1 of $1\n", encoding="utf-8")
    aws = f'#!/bin/bash\necho "$@" >> {tmp_path}/calls\n[[ $2 != terminate* || -z "{"x" * refused}" ]]\n'
    (tmp_path / "aws").write_text(aws, encoding="utf-8")
    for name in ("metadata", "aws", "tell", "failed"):
        (tmp_path / name).chmod(0o755)
    trap = re.search("^trap .* ERR$", text, re.MULTILINE)[0]
    stopped = f"set -Eeuo pipefail\n{trap}\nfalse\nexit 0\n"
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert subprocess.run([shutil.which("bash"), "-c", stopped], env=environ, check=False).returncode != 0
    first, *more = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert first.startswith("autoscaling terminate-instance-in-auto-scaling-group --should-decrement-desired-capacity")
    assert "--instance-id i-1 of instance-id" in first
    assert [line.split()[-1] for line in more] == ["ABANDON"] * refused


@pytest.mark.who_may
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
@BOTH
def test_the_units_on_an_instance_are_sound(kind, tmp_path):
    units = re.findall(r"cat > /etc/systemd/system/(\S+) <<'END'\n(.*?)^END$", script(kind), re.DOTALL | re.MULTILINE)
    assert [name for name, _ in units] == {
        "DriverTemplate": ["serfer-keys.service", "serfer-keys.timer", "serfer.service"],
        GPU: ["serfer-instance.service", "serfer-started.service", "serfer-failed.service"],
    }[kind]
    for name, text in units:
        whole = text.replace("\\\n", "")  # a long line
        here = re.sub(r"(?m)^(ExecStart(Pre)?)=.*", r"\1=/bin/true", whole)
        (tmp_path / name).write_text(re.sub(r"(?m)^User=.*\n", "", here), encoding="utf-8")
    checked = subprocess.run(
        [shutil.which("systemd-analyze"), "verify", *(tmp_path / name for name, _ in units)],
        capture_output=True,
        text=True,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert not [line for line in checked.stderr.splitlines() if "serfer" in line]
