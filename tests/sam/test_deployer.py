import functools
import inspect
import json
import re
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from serfer.sam import teardown
from serfer.sam.deployer import ACTIONS, Target, actions, needed, policies, statements
from serfer.sam.options import Pings
from tests.sam.offered import FEW, PINGED, POOL, POOLED, every_template, of_type, template, translated

MOST_MANAGED_CHARACTERS, MOST_POLICIES = 6_144, 10
REGION, ACCOUNT = "us-east-1", "123456789012"
DEV = Target(["shop-dev"], [REGION], ACCOUNT)
pytestmark = pytest.mark.usefixtures("region")
BOTH = replace(DEV, stacks=["shop-dev", "shop-prod"])
SHAPES = {  # of types whose ARNs hold names: their service, the ARN, and the property that names them
    "AWS::Budgets::Budget": ("budgets", "arn:aws:budgets::{account}:budget/{name}", ""),
    "AWS::CloudWatch::Alarm": ("cloudwatch", "arn:aws:cloudwatch:{region}:{account}:alarm:{name}", "AlarmName"),
    "AWS::Events::Rule": ("events", "arn:aws:events:{region}:{account}:rule/{name}", "Name"),
    "AWS::IAM::InstanceProfile": ("iam", "arn:aws:iam::{account}:instance-profile/{name}", "InstanceProfileName"),
    "AWS::IAM::Role": ("iam", "arn:aws:iam::{account}:role/{name}", "RoleName"),
    "AWS::Logs::LogGroup": ("logs", "arn:aws:logs:{region}:{account}:log-group:{name}", "LogGroupName"),
    "AWS::S3::Bucket": ("s3", "arn:aws:s3:::{name}", "BucketName"),
    "AWS::SNS::Topic": ("sns", "arn:aws:sns:{region}:{account}:{name}", "TopicName"),
    "AWS::Serverless::Function": ("lambda", "arn:aws:lambda:{region}:{account}:function:{name}", "FunctionName"),
    "AWS::Serverless::LayerVersion": ("lambda", "arn:aws:lambda:{region}:{account}:layer:{name}", "LayerName"),
    "AWS::Serverless::StateMachine": ("states", "arn:aws:states:{region}:{account}:stateMachine:{name}", "Name"),
}
NOT_USED = {  # actions that the schemas list for properties that no template here sets
    "AWS::ApiGateway::RestApi": "apigateway:UpdateRestApiPolicy",
    # Classic balancers, notifications, instance refreshes, metrics collection; managed fleets; targets of VPC Lattice.
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling:*LoadBalancers autoscaling:*NotificationConfiguration "
    "autoscaling:*InstanceRefresh autoscaling:*MetricsCollection ec2:Get* managed-fleets:* vpc-lattice:*",
    "AWS::AutoScaling::ScalingPolicy": "cloudwatch:GetMetricData",  # of predictive scaling
    "AWS::Budgets::Budget": "billing:GetBillingViewData",
    "AWS::EC2::Subnet": "ec2:*SubnetCidrBlock",  # IPv6
    "AWS::EC2::VPC": "ec2:CreateVpcEncryptionControl ec2:ModifyVpcTenancy",
    "AWS::EC2::VPCEndpoint": "vpc-lattice:* vpce:AllowMultiRegion",
    "AWS::EC2::VPCGatewayAttachment": "ec2:*VpnGateway",
    "AWS::ECR::Repository": "kms:*",
    "AWS::ElastiCache::ServerlessCache": "kms:CreateGrant ec2:CreateTags",  # of an endpoint: a network brings it
    "AWS::ElastiCache::UserGroup": "elasticache:ModifyReplicationGroup",
    "AWS::ElasticLoadBalancingV2::Listener": "cognito-idp:* elasticloadbalancing:ModifyListenerAttributes",
    "AWS::ElasticLoadBalancingV2::LoadBalancer": "ec2:DescribeIpamPools elasticloadbalancing:ModifyCapacityReservation "
    "elasticloadbalancing:ModifyIpPools",
    # Targets come and go with the Auto Scaling group.
    "AWS::ElasticLoadBalancingV2::TargetGroup": "elasticloadbalancing:*registerTargets "
    "elasticloadbalancing:RegisterTargets",
    "AWS::IAM::Role": "iam:*tachRolePolicy",  # managed policies
    "AWS::KMS::Key": "kms:DisableKey kms:EnableKey",
    "AWS::Lambda::Alias": "codedeploy:*",
    # Networks bring these themselves; file systems, code signing, capacity providers, keys of the customer's.
    "AWS::Lambda::Function": "ec2:Describe* elasticfilesystem:* s3files:* kms:* lambda:*CodeSigningConfig "
    "lambda:AssociateRuntimeAlias lambda:PassCapacityProvider lambda:PutFunctionRecursionConfig "
    "lambda:PutFunctionScalingConfig lambda:PutRuntimeManagementConfig",
    "AWS::Lambda::Version": "lambda:Put*Config",
    # Keys of the customer's, deliveries to other services, data protection, indexes.
    "AWS::Logs::LogGroup": "firehose:* s3:REST.PUT.OBJECT logs:*KmsKey logs:CreateLogDelivery "
    "logs:*DataProtectionPolicy logs:*IndexPolicy logs:*ResourcePolicy logs:PutBearerTokenAuthentication "
    "logs:PutLogGroupDeletionProtection",
    "AWS::S3::Bucket": "s3:*BucketMetadata*Configuration s3:DeleteBucket[!P]* s3:Put*AccelerateConfiguration "
    "s3:Put*AnalyticsConfiguration s3:PutBucket[ACLNOR]* s3:Put*TieringConfiguration s3:PutInventoryConfiguration "
    "s3:PutMetricsConfiguration s3:PutObject* s3:PutReplicationConfiguration s3:PutBucketWebsite s3tables:*",
    "AWS::S3Express::DirectoryBucket": "kms:* s3express:Put*Configuration",
    "AWS::SNS::Topic": "sns:PutDataProtectionPolicy",
    "AWS::StepFunctions::StateMachine": "kms:*",
    "AWS::WAFv2::WebACL": "payments:GetConnectedAccount",
    # Resources of other services than the load balancer's.
    "AWS::WAFv2::WebACLAssociation": "amplify:* apigateway:SetWebACL apprunner:* appsync:* bedrock-agentcore:* "
    "cognito-idp:* ec2:*VerifiedAccess* wafv2:*PermissionPolicy",
}
CALLED = {  # what teardown.py calls, and what it takes
    "delete_objects": {"s3:DeleteObject", "s3:DeleteObjectVersion"},
    "list_object_versions": {"s3:ListBucketVersions"},
    "list_objects_v2": {"s3:ListBucket"},
    "list_multipart_uploads": {"s3:ListBucketMultipartUploads"},
    "abort_multipart_upload": {"s3:AbortMultipartUpload"},
    "describe_stacks": {"cloudformation:DescribeStacks"},
    "delete_stack": {"cloudformation:DeleteStack"},
    "list_images": {"ecr:ListImages"},
    "batch_delete_image": {"ecr:BatchDeleteImage"},
    "list_stack_resources": {"cloudformation:ListStackResources"},
}


def types(source):
    return [resource["Type"] for resource in source["Resources"].values()]


def test_deployers_may_delete_as_well():
    allowed = set(actions([*types(template()), teardown.REPOSITORY]))
    text = inspect.getsource(teardown)
    for call, wanted in CALLED.items():
        assert re.search(rf"\b{call}\b", text), call
        assert wanted <= allowed
    assert "s3express:CreateSession" in actions(types(template(store="s3express")))


def test_deployers_may_create_the_resources_of_a_sam_function():
    source = template(snapstart=True)
    made = translated(source)
    allowed = set(actions(types(source)))
    assert of_type(made, "AWS::Lambda::EventInvokeConfig")
    assert {f"lambda:{verb}FunctionEventInvokeConfig" for verb in ("Put", "Update", "Delete")} <= allowed
    assert of_type(made, "AWS::Lambda::Version")
    assert {"lambda:PublishVersion", "lambda:CreateAlias", "lambda:UpdateAlias"} <= allowed


def test_sams_own_bucket_can_be_made():
    (statement,) = (one for one in statements(types(template()), DEV) if one["Sid"] == "Cloudformation")
    assert any(f":stack/{teardown._ARTEFACTS}/" in name for name in statement["Resource"])


@pytest.mark.parametrize("chosen", [*FEW, POOLED, PINGED])
def test_the_deployers_policies_allow_every_action_on_every_arn_of_dev_and_prod(chosen):
    """What doctor printed once named NAME alone, so that neither NAME-dev nor NAME-prod could be made."""
    source = template(*chosen, **{POOLED: {"gpu": POOL}, PINGED: {"pings": Pings(5)}}.get(chosen, {}))
    allowed = [one for each in policies(set(types(source)), BOTH) for one in each["Statement"]]
    for stack in BOTH.stacks:
        for sid, arn, wanted in deployed_arns(source, stack):
            for action in wanted:
                assert allows(allowed, action, arn), (stack, sid, action, arn)
    for sid, arn, wanted in deployed_arns(source, "other-dev"):
        assert sid == "transform" or not any(allows(allowed, action, arn) for action in wanted), sid


def allows(allowed, action, arn):
    """Return whether a statement allows an action on an ARN; "*" in a resource matches as in IAM."""
    return any(
        action in one["Action"]
        and any(
            fnmatchcase(arn, pattern)
            for pattern in ([one["Resource"]] if isinstance(one["Resource"], str) else one["Resource"])
        )
        for one in allowed
    )


def deployed_arns(source, stack):
    """Yield the ARN of each resource of a deployed stack, and the actions of its own service that deploying takes.

    Names that the template gives are taken from it; CloudFormation's own are STACK-LOGICALID-RANDOM. Resources whose
    ARNs hold ids that AWS makes up are left out: their statements name none.
    """
    names = {"AWS::StackName": stack}
    yield (
        "stack",
        f"arn:aws:cloudformation:{REGION}:{ACCOUNT}:stack/{stack}/guid",
        sorted(
            action
            for action in ACTIONS.base
            if action.startswith("cloudformation:") and not action.endswith("TemplateSummary")
        ),
    )
    transform = f"arn:aws:cloudformation:{REGION}:aws:transform/Serverless-2016-10-31"
    yield "transform", transform, ["cloudformation:CreateChangeSet"]
    for sid, one in source["Resources"].items():
        made = f"{stack}-{sid}-1ABCDEFGHIJKL"
        named = SHAPES.get(one["Type"])
        if named is None:
            continue
        service, shape, key = named
        name = resolved(one["Properties"][key], names) if key in one["Properties"] else made
        arn = shape.format(name=name.lower() if service == "s3" else name, region=REGION, account=ACCOUNT)
        actions_there = {*needed(one["Type"]), *({"iam:PassRole"} if one["Type"] == "AWS::IAM::Role" else ())}
        yield (
            sid,
            arn,
            sorted(each for each in actions_there if each.startswith(f"{service}:") and each not in ACTIONS.unnamed),
        )


def resolved(value, names):
    """Return a name with the stack's put in."""
    text = value["Fn::Sub"] if isinstance(value, dict) else value
    return re.sub(r"\$\{([^}]+)\}", lambda match: names[match[1]], text)


def test_roles_are_passed_to_the_services_that_assume_them_and_to_no_other():
    for chosen, source in every_template():
        assumed = {
            service
            for role in of_type(source, "AWS::IAM::Role").values()
            for statement in role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
            for service in as_list(statement["Principal"]["Service"])
        }
        allowed = {one["Sid"]: one for one in statements(types(source), DEV)}
        condition = allowed["IamPass"]["Condition"]["StringEquals"]
        assert set(as_list(condition["iam:PassedToService"])) == assumed, chosen
        assert all("iam:PassRole" not in one["Action"] for sid, one in allowed.items() if sid != "IamPass")


def as_list(value):
    return value if isinstance(value, list) else [value]


def test_with_a_boundary_roles_are_made_within_it_alone():
    bound = "arn:aws:iam::123456789012:policy/bound"
    allowed = statements(types(template()), replace(DEV, boundaries=[bound]))
    (bounded,) = (one for one in allowed if one["Sid"] == "IamBounded")
    assert bounded["Condition"] == {"StringEquals": {"iam:PermissionsBoundary": bound}}
    assert {"iam:CreateRole", "iam:PutRolePolicy", "iam:PutRolePermissionsBoundary"} <= set(bounded["Action"])
    others = {action for one in allowed if one is not bounded for action in one["Action"]}
    assert not others & {*bounded["Action"], "iam:DeleteRolePermissionsBoundary"}


def test_each_of_a_deployers_policies_fits_a_managed_policy_and_a_role_has_room_for_all():
    stack = "s" * 30
    for chosen, source in every_template():
        target = Target([f"{stack}-dev", f"{stack}-prod"], ["ap-southeast-2"], "ACCOUNT")
        documents = policies(set(types(source)), target)
        assert len(documents) <= MOST_POLICIES, chosen
        assert all(managed_characters(each) <= MOST_MANAGED_CHARACTERS for each in documents), chosen
        assert [one for each in documents for one in each["Statement"]] == statements(set(types(source)), target)


def managed_characters(document):
    """Return how long a document is, as IAM counts it, when the account's number is put in."""
    return len("".join(json.dumps(document).split()).replace("ACCOUNT", ACCOUNT))


@functools.cache
def handlers(kind):
    """Return the actions that AWS's own schema of a type lists for creating, reading, updating and deleting it."""
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER  # noqa: PLC0415 - slow to import

    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
    return {
        action
        for operation, handler in schema.get("handlers", {}).items()
        if operation != "list"
        for action in handler.get("permissions", [])
    }


def test_the_actions_are_those_of_awss_own_schemas():
    """A newer cfn-lint may list more: add them to deployer_actions.toml, or below with the property they are for."""
    met = set()
    sources = [*(template(*chosen) for chosen in FEW), template(*POOLED, gpu=POOL), template(snapstart=True)]
    sources += [template(*PINGED, pings=Pings(5)), template(provisioned_concurrency=1)]
    sources.append({"Resources": {"Repo": {"Type": teardown.REPOSITORY}}})
    for source in sources:
        allowed = actions(types(source))
        for kind in set(types(translated(source) if "Transform" in source else source)):
            assert handlers(kind), kind
            missing = [wanted for wanted in handlers(kind) if not any(fnmatchcase(one, wanted) for one in allowed)]
            excused = {
                one: {each for each in NOT_USED.get(kind, "").split() if fnmatchcase(one, each)} for one in missing
            }
            assert all(excused.values()), (kind, sorted(one for one, patterns in excused.items() if not patterns))
            met |= {(kind, pattern) for patterns in excused.values() for pattern in patterns}
    assert met == {(kind, pattern) for kind, patterns in NOT_USED.items() for pattern in patterns.split()}


def test_every_type_in_the_table_is_in_some_template():
    used = {kind for _, source in every_template() for kind in types(source)}
    families = {kind[: kind.rindex("::") + 2] for kind in used}
    assert ACTIONS.types.keys() <= used | families | {teardown.REPOSITORY}  # which SAM CLI makes
