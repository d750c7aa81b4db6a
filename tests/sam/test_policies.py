"""Who may do what: every permission is in the tables below with the code that needs it, and none of them is idle."""

import contextlib
import http.client
import inspect
import itertools
import json
import re
from collections import defaultdict
from urllib.parse import parse_qs, urlsplit

import pytest

from serfer.core.errors import MissingKeyError, StoreError
from serfer.core.keys import inbox_key, input_key, output_key, query_id, reply_key
from serfer.drivers.stepfunctions import client
from serfer.fleet.provisioners import auto_scaling
from serfer.sam.options import STACK, digest12
from serfer.storage import Range, open_store
from serfer.storage.exchange import START, Message
from serfer.storage.s3.store import Limits, S3Store
from serfer_bench.core.redis_cluster import RedisCluster
from serfer_bench.core.s3_server import S3Server
from tests.sam.offered import KEEPING, POOL, POOLED, SERVES, SERVING, every_template, of_type, plans, template
from tests.storage.s3_stub import refused, stub

LOG = dict.fromkeys(("logs:CreateLogStream", "logs:PutLogEvents"), "Lambda, or the agent, writes the log as the role")
NETWORK = dict.fromkeys(
    [
        *(f"ec2:{verb}NetworkInterface" for verb in ("Create", "Delete")),
        *(f"ec2:{verb}PrivateIpAddresses" for verb in ("Assign", "Unassign")),
        *("ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"),
    ],
    "Lambda puts the function into the network as the role",
)
ALLOWED = {
    "WorkerRole": {
        **LOG,
        "s3:GetObject": "storage/s3/store.py: get_many, and exists by HEAD; weights that are fetched",
        "s3:PutObject": "storage/s3/store.py: put, and the parts of large values",
        "s3:AbortMultipartUpload": "storage/s3/client.py: a large value that fails is taken back",
        "s3:ListBucket": "storage/s3/objects.py: what is missing is 403 without it; and _look_at_bucket",
        "s3:DeleteObject": "lambdas/worker.py: cleaning up, which Step Functions asks the last stage for",
        "s3express:CreateSession": "storage/s3/client.py",
        "elasticache:Connect": "storage/redis/iam.py",
        **NETWORK,
    },
    "DriverRole": {
        **LOG,
        "lambda:InvokeFunction": "drivers/lambda_http.py",
        "s3:GetObject": "storage/s3/store.py: get_many, and exists by HEAD; user-data.sh: keys.json",
        "s3:PutObject": "storage/s3: put, compare_and_set, and the parts of large values",
        "s3:AbortMultipartUpload": "storage/s3/client.py: a large value that fails is taken back",
        "s3:DeleteObject": "storage/s3/store.py: delete, when a query ends; results",
        "s3:ListBucket": "storage/s3/objects.py: what is missing is 403 without it; and _look_at_bucket",
        "s3express:CreateSession": "storage/s3/client.py",
        "elasticache:Connect": "storage/redis/iam.py",
        "states:StartExecution": "drivers/stepfunctions/client.py, Standard",
        "states:DescribeExecution": "drivers/stepfunctions/client.py, Standard",
        "states:StopExecution": "drivers/stepfunctions/client.py, Standard",
        "states:StartSyncExecution": "drivers/stepfunctions/client.py, Express",
        "lambda:GetLayerVersion": "user-data.sh: an instance gets its code",
        "autoscaling:DescribeAutoScalingGroups": "serfer/fleet/provisioners/auto_scaling.py: members",
        "ec2:DescribeInstances": "serfer/fleet/provisioners/auto_scaling.py: their addresses",
        "autoscaling:SetDesiredCapacity": "serfer/fleet/provisioners/auto_scaling.py: start",
        "autoscaling:TerminateInstanceInAutoScalingGroup": "serfer/fleet/provisioners/auto_scaling.py: stop",
        "cloudformation:SignalResource": "user-data.sh: an instance says that it answers",
        **NETWORK,
    },
    "HealthRole": {
        **LOG,
        "lambda:InvokeFunction": "sam/build/health.py: a dry run wants the permission of an invocation",
    },
    "MachineRole": {"lambda:InvokeFunction": "drivers/stepfunctions/asl.py: the state machine's tasks"},
    "UploaderRole": {
        **LOG,
        "s3:GetObject": "sam/build/uploader.py: whether an object is what it should be",
        "s3:PutObject": "sam/build/uploader.py: an object, or the parts of one",
        "s3:DeleteObject": "sam/build/uploader.py: weights that no plan of the stack uses any more",
        "s3:AbortMultipartUpload": "sam/build/uploader.py: an upload that was not completed",
        "s3:ListBucketMultipartUploads": "sam/build/uploader.py: same",
        "s3:ListBucket": "sam/build/uploader.py: what is missing is 403 without it",
    },
    "GpuRole": {
        "s3:GetObject": "user-data-weights.sh: weights that functions fetch",
        **LOG,
        "lambda:GetLayerVersion": "user-data-gpu.sh: an instance gets its code and its weights",
        "autoscaling:CompleteLifecycleAction": "user-data-gpu.sh: an instance says that it answers",
        "autoscaling:TerminateInstanceInAutoScalingGroup": "fleet/provisioners/auto_scaling.py: release_this_instance",
    },
}
# What may stand behind something named.
NAMED = (
    r"\$\{StoreBucket\.Arn\}/serfer/\*",  # the store's prefix in the store's bucket
    r"\$\{ResultsBucket\.Arn\}/results/\*",  # results that are kept for their owners
    r"\$\{WeightsBucket\.Arn\}/weights/\*",  # the objects of the bucket of weights
    r"arn:.*:s3:::models/faces/documents/applications/(faces|pets)\.json/\*",  # the versions of a record
    r"arn:.*:execution:\$\{Machine[0-9a-f]{12}\.Name\}:\*",  # executions of one state machine
    # One group, in whose ARN Auto Scaling puts an id of its own.
    r"arn:.*:autoScalingGroup:\*:autoScalingGroupName/\$\{AWS::StackName\}-gpu-[0-9a-f]{12}(-spot)?",
)
# What names nothing, with the reason; a role's, then other policies'.
WIDE = {
    ("ec2:CreateNetworkInterface", "network-interface/*"): "an interface has no name before there is one",
    ("ec2:DeleteNetworkInterface", "*/*"): "Lambda's developer guide: anything narrower keeps it out of the network",
    ("ec2:AssignPrivateIpAddresses", "*/*"): "same",
    ("ec2:UnassignPrivateIpAddresses", "*/*"): "same",
    ("ec2:DescribeNetworkInterfaces", "*"): "knows no resource",
    ("ec2:DescribeSubnets", "*"): "knows no resource",
    ("ec2:DescribeInstances", "*"): "knows no resource",
    ("autoscaling:DescribeAutoScalingGroups", "*"): "knows no resource",
}
WIDE_ELSEWHERE = {
    ("AlarmKey", "*"): "in a key's policy it means this key",
    ("EndpointLambda", "function:${AWS::StackName}-*"): "the role behind it names each function",
    ("EndpointLambda", "layer:${AWS::StackName}-*"): "the role behind it names each layer",
    ("EndpointAutoScaling", "*"): "describing groups knows no resource",
    ("EndpointAutoScaling", "autoScalingGroupName/${AWS::StackName}-gpu-*"): "the roles behind it name each group",
    ("EndpointEc2", "*"): "describing instances knows no resource",
    ("EndpointStates", "stateMachine:${AWS::StackName}-*"): "the role behind it names each machine",
    ("EndpointStates", "execution:${AWS::StackName}-*:*"): "the role behind it names each machine",
    ("EndpointS3", "s3:::al2023-repos-${AWS::Region}-de612dc2/*"): "Amazon Linux's packages, which anybody may read",
    ("EndpointS3", "s3:::*/snapshots/${AWS::AccountId}/*"): "Lambda does not tell where layers lie; by signed links",
    ("EndpointS3", "${StoreBucket.Arn}/serfer/*"): "the store's prefix in the store's bucket",
    ("EndpointS3", "${ResultsBucket.Arn}/results/*"): "results that are kept for their owners",
    ("EndpointS3", "${WeightsBucket.Arn}/weights/*"): "the objects of the bucket of weights",
    ("EndpointS3", "/documents/applications/faces.json/*"): "the versions of a record",
    ("EndpointS3", "/documents/applications/pets.json/*"): "the versions of a record",
}


def listed(value):
    return value if isinstance(value, list) else [value]


def written(resource):
    if isinstance(resource, str):
        return resource
    ((kind, value),) = resource.items()
    return value if kind == "Fn::Sub" else json.dumps(value)


def roles(source):
    for name, role in of_type(source, "AWS::IAM::Role").items():
        yield name, role["Properties"]


def statements(properties):
    return [one for policy in properties["Policies"] for one in policy["PolicyDocument"]["Statement"]]


def every_statement():
    """Yield each statement of each role of every template, with the choices and the role's name."""
    for chosen, source in every_template():
        for name, properties in roles(source):
            yield from ((chosen, name, one) for one in statements(properties))


def granted(source, role, resource=""):
    """Return the actions that a role of a template is allowed, those on resources that name `resource`."""
    allowed = [one for one in statements(source["Resources"][role]["Properties"]) if one["Effect"] == "Allow"]
    return {action for one in allowed if resource in json.dumps(one["Resource"]) for action in listed(one["Action"])}


def other_policies(source):
    """Yield the statements of resources' own policies: buckets, keys, topics, endpoints."""
    for name, resource in source["Resources"].items():
        properties = resource["Properties"]
        for field in ("PolicyDocument", "KeyPolicy"):
            if field in properties:
                yield from ((name, one) for one in properties[field]["Statement"])


@pytest.mark.who_may
def test_roles_are_written_by_hand_and_bounded():
    for chosen, source in every_template():
        for name, properties in roles(source):
            assert "ManagedPolicyArns" not in properties, chosen
            assert properties["PermissionsBoundary"]["Fn::If"][0] == "HasBoundary"
            assert len(statements(properties)) > 0, name
        for function in of_type(source, "AWS::Serverless::Function").values():
            assert "Policies" not in function["Properties"]
            role = function["Properties"]["Role"]["Fn::GetAtt"][0]
            assert role in {"WorkerRole", "DriverRole", "UploaderRole", "HealthRole"}


@pytest.mark.who_may
def test_each_role_is_for_one_service_of_this_account():
    services = defaultdict(set)
    for chosen, source in every_template():
        for name, properties in roles(source):
            (trust,) = properties["AssumeRolePolicyDocument"]["Statement"]
            services[name, chosen[0] if name == "DriverRole" else ""].add(trust["Principal"]["Service"])
            assert (name == "MachineRole") == ("Condition" in trust)
    assert services == {
        ("WorkerRole", ""): {"lambda.amazonaws.com"},
        ("DriverRole", "function"): {"lambda.amazonaws.com"},
        ("DriverRole", "fleet"): {"ec2.amazonaws.com"},
        ("MachineRole", ""): {"states.amazonaws.com"},
        ("GpuRole", ""): {"ec2.amazonaws.com"},
        ("UploaderRole", ""): {"lambda.amazonaws.com"},
        ("HealthRole", ""): {"lambda.amazonaws.com"},
    }


@pytest.mark.who_may
def test_roles_have_exactly_the_listed_permissions():
    given = defaultdict(set)
    for _, name, one in every_statement():
        if one["Effect"] == "Allow":
            given[name].update(listed(one["Action"]))
    assert given == {name: set(actions) for name, actions in ALLOWED.items()}


@pytest.mark.who_may
def test_every_permission_names_its_resources():
    met = set()
    for chosen, name, one in every_statement():
        assert not {"NotAction", "NotResource"} & one.keys()
        assert not any("*" in action for action in listed(one["Action"]))
        if one["Effect"] == "Deny":
            continue
        for action, text in itertools.product(listed(one["Action"]), map(written, listed(one["Resource"]))):
            if "*" in text and not any(re.fullmatch(known, text) for known in NAMED):
                wide = text.rpartition("${AWS::AccountId}:")[2]
                assert (action, wide) in WIDE, (chosen, name, action, text)
                met.add((action, wide))
    assert met == WIDE.keys()


@pytest.mark.who_may
def test_resource_policies_name_resource_and_principal():
    met = set()
    for chosen, source in every_template():
        for name, one in other_policies(source):
            if one["Effect"] == "Deny":
                assert one["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
                continue
            assert not any("*" in action for action in listed(one["Action"])), (chosen, name)
            if one["Principal"] == "*":  # gateway endpoints know no other; then a condition says who
                assert name.startswith("Endpoint")
                assert one["Sid"] in {"Packages", "Layers"} or "aws:PrincipalArn" in one["Condition"]["ArnEquals"]
            for text in map(written, listed(one["Resource"])):
                if "*" in text:
                    ends = [entry for entry in WIDE_ELSEWHERE if entry[0] == name and text.endswith(entry[1])]
                    known = sorted(ends, key=lambda entry: -len(entry[1]))
                    known = [entry for entry in known if entry[1] != "*" or text == "*"]
                    assert known, (chosen, name, text)
                    met.update(known[:1])
    assert met == WIDE_ELSEWHERE.keys()


@pytest.mark.who_may
def test_an_endpoint_lets_nothing_through_that_the_role_behind_it_may_not():
    for chosen, source in every_template():
        allowed = {name: granted(source, name) for name, _ in roles(source)}
        for name, one in other_policies(source):
            if name.startswith("Endpoint") and one["Sid"] not in {"Packages", "Layers"}:
                role, _ = one["Condition"]["ArnEquals"]["aws:PrincipalArn"]["Fn::GetAtt"]
                assert set(listed(one["Action"])) <= allowed[role], (chosen, name)


@pytest.mark.who_may
def test_function_code_cannot_use_lambdas_network_permissions():
    for name, properties in roles(template("function", "valkey", "push")):
        allowed = statements(properties)
        denied = [one for one in allowed if one["Effect"] == "Deny"]
        network = {action for one in allowed for action in listed(one["Action"]) if action.startswith("ec2:")}
        assert name == "MachineRole" or (
            [set(one["Action"]) for one in denied] == [network]
            and denied[0]["Condition"] == {"Null": {"lambda:SourceFunctionArn": "false"}}
        )


@pytest.mark.who_may
def test_drivers_invoke_both_plans_functions_and_no_others():
    source = template("function", "s3", "push")
    stages = {name for name in of_type(source, "AWS::Serverless::Function") if name != "DriverFunction"}
    invoked = [
        resource["Fn::GetAtt"]
        for one in statements(source["Resources"]["DriverRole"]["Properties"])
        if one["Action"] == "lambda:InvokeFunction"
        for resource in one["Resource"]
    ]
    assert sorted(invoked) == sorted([name, "Arn"] for name in stages)


@pytest.mark.who_may
def test_a_pool_is_changed_by_its_drivers_and_its_instances_and_no_other_is():
    source = template(*POOLED, gpu=POOL)
    groups = {group["Properties"]["AutoScalingGroupName"]["Fn::Sub"] for group in pools(source)}
    own = {f"{STACK}-gpu-{digest12(plan)}" for plan in plans()}
    assert groups == own
    tagged = {"StringEquals": {"autoscaling:ResourceTag/serfer:stack": {"Ref": "AWS::StackName"}}}
    for role in ("DriverRole", "GpuRole"):
        changing = [
            one
            for one in statements(source["Resources"][role]["Properties"])
            if set(listed(one["Action"])) & {"autoscaling:TerminateInstanceInAutoScalingGroup"}
        ]
        assert {written(one["Resource"]).rpartition("/")[2] for one in changing} == own
        assert all(one["Condition"] == tagged for one in changing)
    for group in pools(source):
        tags = {tag["Key"]: tag["Value"] for tag in group["Properties"]["Tags"]}
        assert tags["serfer:stack"] == {"Ref": "AWS::StackName"}


def pools(source):
    every = of_type(source, "AWS::AutoScaling::AutoScalingGroup")
    return [group for name, group in every.items() if name.startswith("Gpu")]


@pytest.mark.who_may
def test_an_instance_may_read_its_own_code_and_the_weights_of_its_plans():
    source = template(*POOLED, gpu=POOL)
    read = [
        layer["Ref"]
        for one in statements(source["Resources"]["GpuRole"]["Properties"])
        if one["Action"] == "lambda:GetLayerVersion"
        for layer in one["Resource"]
    ]
    layers = of_type(source, "AWS::Serverless::LayerVersion")
    assert sorted(read) == sorted(set(layers) - {"WorkerLayer"})


@pytest.mark.who_may
def test_drivers_may_make_exactly_the_provisioners_calls():
    text = inspect.getsource(auto_scaling)
    called = {
        f"{service}:{''.join(part.capitalize() for part in name.split('_'))}"
        for service, name in re.findall(r'_call\(\s*"(\w+)",\s*"(\w+)"', text)
    }
    assert called == {action for action in ALLOWED["DriverRole"] if "auto_scaling.py" in ALLOWED["DriverRole"][action]}


@pytest.mark.who_may
def test_the_methods_that_drivers_call_of_step_functions_are_those_that_they_may():
    called = {*re.findall(r"self\._client\.(\w+)", inspect.getsource(client.Executions))} - {"close"}
    actions = {f"states:{''.join(part.capitalize() for part in name.split('_'))}" for name in called}
    assert actions == {action for action in ALLOWED["DriverRole"] if action.startswith("states:")}


@pytest.mark.who_may
@pytest.mark.parametrize("chosen", SERVING, ids="-".join)
def test_drivers_read_their_applications_records_alone_and_a_fleets_drivers_replace_them(chosen):
    source = template(*chosen, applications=SERVES)
    ours = [
        (set(listed(one["Action"])), sorted(map(written, listed(one["Resource"]))))
        for one in statements(source["Resources"]["DriverRole"]["Properties"])
        if one["Sid"] in {"Applications", "Registry", "RecordVersions"}
    ]
    bucket = "arn:${AWS::Partition}:s3:::models"
    place = "arn:${AWS::Partition}:s3:::models/faces"
    records = [f"{place}/documents/applications/{name}.json/*" for name in ("faces", "pets")]
    changing = {"s3:PutObject"} if chosen[0] == "fleet" else set()
    assert ours == [
        ({"s3:GetObject"} | changing, records),
        ({"s3:GetObject"}, [f"{place}/registry.json"]),
        ({"s3:ListBucket"}, [bucket]),
    ]
    endpoint = source["Resources"].get("EndpointS3")
    assert (endpoint is None) == (chosen == ("function", "s3", "push"))
    if endpoint:
        passing = {one["Sid"] for one in endpoint["Properties"]["PolicyDocument"]["Statement"]}
        assert {"Applications", "Registry", "RecordVersions"} <= passing


def permission(request):
    """Return the action that S3 checks for a request (its user guide, "Required permissions for S3 API operations")."""
    path, _, query = request.path.partition("?")
    query = parse_qs(query, keep_blank_values=True)
    if "/" not in path.strip("/"):
        known = {("GET", "list-type"): "s3:ListBucket", ("POST", "delete"): "s3:DeleteObject"}
        return next(action for (method, word), action in known.items() if method == request.method and word in query)
    if request.method == "DELETE" and "uploadId" in query:
        return "s3:AbortMultipartUpload"
    return {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject", "POST": "s3:PutObject"}[
        request.method
    ]


QUERY = query_id(one_slot=True)


def work(store, *, driving):
    key, crop = output_key(QUERY, 0, 0), input_key(QUERY, 0)
    store.put(key, b"x" * 64, 60)
    assert store.get_many([Range(key), Range(key, 8, 8)]) == [b"x" * 64, b"x" * 8]
    assert store.exists([key, output_key(QUERY, 1, 0)]) == [True, False]
    with pytest.raises(MissingKeyError):
        store.get(reply_key(QUERY, 0, 0, 0))
    if exchange := store.exchange():
        exchange.send([Message(inbox_key(QUERY, 0, 0), b"x")], 60)
        assert len(exchange.receive(inbox_key(QUERY, 0, 0), START, 30)) == 1
        exchange.close()
    if driving:
        store.put(crop, b"y" * 64, 60)
        coordination = store.coordination()
        version = coordination.compare_and_set("serfer:answer:me", None, b"z", 60)
        assert coordination.compare_and_set("serfer:answer:me", version, b"zz", 60)
        assert coordination.get("serfer:answer:me").value == b"zz"
        coordination.delete(["serfer:answer:me"])
        store.delete([key, crop])


@pytest.fixture(scope="module")
def seaweed():
    with S3Server() as server:
        yield server


@pytest.mark.who_may
def test_s3_requests_use_exactly_the_granted_actions(seaweed, monkeypatch):
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    actions, failing = set(), []

    def passed_on(request):
        actions.add(permission(request))
        if failing and "partNumber=" in request.path:
            return refused(403, "AccessDenied")
        with contextlib.closing(http.client.HTTPConnection(urlsplit(seaweed.endpoint).netloc)) as far:
            far.request(request.method, request.path, request.body, request.headers)
            response = far.getresponse()
            return response.status, dict(response.headers), response.read()

    limits = Limits(multipart_from=100, part=64)
    for role, more in (("WorkerRole", set()), ("WorkerRole", {"s3:DeleteObject"}), ("DriverRole", {"s3:DeleteObject"})):
        actions.clear()
        with (
            stub(passed_on) as (endpoint, _),
            S3Store(f"s3://{seaweed.bucket}/serfer?endpoint={endpoint}", limits=limits) as store,
        ):
            work(store, driving=role == "DriverRole")
            failing.append(True)
            with pytest.raises(StoreError):
                store.put("serfer:large", b"x" * 128, 60)
            failing.clear()
            if more:
                store.delete(["serfer:large"])
        engine = "stepfunctions" if more else "push"
        allowed = granted(template("function", "s3", engine), role)
        assert actions == {action for action in allowed if action.startswith("s3:")}


@pytest.mark.who_may
def test_the_cache_user_may_run_exactly_our_commands():
    access = template("function", "valkey", "push")["Resources"]["CacheUser"]["Properties"]["AccessString"].split()
    with RedisCluster(nodes=2) as cluster:
        for node in range(2):
            with cluster.client(node) as client:
                client.execute([("ACL", "SETUSER", "app", ">secret", *access), ("CONFIG", "RESETSTAT")])
        url = re.sub("://:[^@]*@", "://app:secret@", cluster.url)
        with open_store(url) as store:
            work(store, driving=True)
            with pytest.raises(Exception, match="forbids it"):
                store.put("another:key", b"x", 60)
        used = set()
        for node in range(2):
            with cluster.client(node) as client:
                [stats] = client.execute([("INFO", "commandstats")])
                used |= {*re.findall(r"^cmdstat_(\w+)", stats.decode(), re.MULTILINE)}
    allowed = {rule.removeprefix("+").partition("|")[0] for rule in access if rule.startswith("+")}
    own = {"info", "config", "acl", "auth", "hello", "client", "ping", "select", "command"}
    moved = {"asking"}  # where a slot moves, which nothing here does
    assert used - own == allowed - moved


@pytest.mark.who_may
def test_only_the_applications_user_may_log_in():
    source = template("fleet", "redis", "push")
    users = of_type(source, "AWS::ElastiCache::User")
    assert {name: user["Properties"]["AuthenticationMode"]["Type"] for name, user in users.items()} == {
        "CacheUser": "iam",
        "NobodyUser": "no-password-required",
    }
    assert users["NobodyUser"]["Properties"]["AccessString"].startswith("off ")
    members = source["Resources"]["CacheUsers"]["Properties"]["UserIds"]
    assert members == [{"Ref": "CacheUser"}, {"Ref": "NobodyUser"}]
    assert template("fleet", "valkey", "push")["Resources"]["CacheUsers"]["Properties"]["UserIds"] == members[:1]


@pytest.mark.who_may
@pytest.mark.parametrize("chosen", KEEPING, ids="-".join)
def test_functions_write_results_and_drivers_alone_read_them(chosen):
    source = template(*chosen, results_days=2)
    write = {"s3:PutObject", "s3:AbortMultipartUpload"}
    assert granted(source, "WorkerRole", "ResultsBucket") == write
    read = {"s3:GetObject", "s3:DeleteObject", "s3:ListBucket"}
    assert granted(source, "DriverRole", "ResultsBucket") == write | read
    without = json.dumps(template(*chosen))
    assert "ResultsBucket" not in without
    assert "SERFER_RESULTS" not in without
