"""What whoever deploys a stack must be allowed to do: the actions that each type of its resources needs, as IAM policy.

Names that AWS makes up (APIs, networks, machines) cannot be told beforehand: those statements name no resource, and
their actions are confined by region.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BASE = (
    "cloudformation:CreateChangeSet",
    "cloudformation:DeleteChangeSet",
    "cloudformation:DeleteStack",
    "cloudformation:DescribeChangeSet",
    "cloudformation:DescribeStackEvents",
    "cloudformation:DescribeStackResources",
    "cloudformation:DescribeStacks",
    "cloudformation:ExecuteChangeSet",
    "cloudformation:GetTemplateSummary",
    "cloudformation:ListStackResources",
    "cloudformation:TagResource",
    "s3:AbortMultipartUpload",
    "s3:CreateBucket",
    "s3:DeleteObject",
    "s3:DeleteObjectVersion",
    "s3:GetBucketLocation",
    "s3:GetEncryptionConfiguration",
    "s3:GetObject",
    "s3:ListBucket",
    "s3:ListBucketMultipartUploads",
    "s3:ListBucketVersions",
    "s3:PutBucketPolicy",
    "s3:PutBucketPublicAccessBlock",
    "s3:PutBucketTagging",
    "s3:PutBucketVersioning",
    "s3:PutEncryptionConfiguration",
    "s3:PutObject",
)
"""What every deployment with SAM CLI needs: stacks, the bucket of its packages, and emptying buckets at last."""

_ROLE = (
    "iam:CreateRole",
    "iam:DeleteRole",
    "iam:DeleteRolePolicy",
    "iam:GetRole",
    "iam:GetRolePolicy",
    "iam:ListAttachedRolePolicies",
    "iam:ListRolePolicies",
    "iam:PassRole",
    "iam:PutRolePermissionsBoundary",
    "iam:PutRolePolicy",
    "iam:TagRole",
    "iam:UntagRole",
    "iam:UpdateAssumeRolePolicy",
)
_API = ("apigateway:DELETE", "apigateway:GET", "apigateway:PATCH", "apigateway:POST", "apigateway:PUT")
_MACHINE = (
    "states:CreateStateMachine",
    "states:DeleteStateMachine",
    "states:DescribeStateMachine",
    "states:TagResource",
    "states:UpdateStateMachine",
    "states:ValidateStateMachineDefinition",
)
_FUNCTION = (
    "lambda:CreateAlias",
    "lambda:CreateFunction",
    "lambda:DeleteAlias",
    "lambda:DeleteFunction",
    "lambda:DeleteFunctionConcurrency",
    "lambda:DeleteFunctionEventInvokeConfig",
    "lambda:GetAlias",
    "lambda:GetFunction",
    "lambda:GetFunctionCodeSigningConfig",
    "lambda:GetFunctionConfiguration",
    "lambda:GetFunctionEventInvokeConfig",
    "lambda:GetLayerVersion",
    "lambda:ListTags",
    "lambda:ListVersionsByFunction",
    "lambda:PublishVersion",
    "lambda:PutFunctionConcurrency",
    "lambda:PutFunctionEventInvokeConfig",
    "lambda:TagResource",
    "lambda:UntagResource",
    "lambda:UpdateAlias",
    "lambda:UpdateFunctionCode",
    "lambda:UpdateFunctionConfiguration",
    "lambda:UpdateFunctionEventInvokeConfig",
)
_NETWORK = ("ec2:CreateTags", "ec2:DeleteTags")
_LOGS = (
    "logs:CreateLogGroup",
    "logs:DeleteLogGroup",
    "logs:DescribeLogGroups",
    "logs:ListTagsForResource",
    "logs:PutRetentionPolicy",
    "logs:TagResource",
)

DEPLOYER_ACTIONS: dict[str, tuple[str, ...]] = {
    "AWS::ApiGateway::": _API,
    "AWS::AutoScaling::AutoScalingGroup": (
        "autoscaling:CreateAutoScalingGroup",
        "autoscaling:CreateOrUpdateTags",
        "autoscaling:DeleteAutoScalingGroup",
        "autoscaling:DescribeAutoScalingGroups",
        "autoscaling:DescribeLifecycleHooks",
        "autoscaling:DescribeScalingActivities",
        "autoscaling:PutLifecycleHook",
        "autoscaling:ResumeProcesses",
        "autoscaling:SuspendProcesses",
        "autoscaling:TerminateInstanceInAutoScalingGroup",
        "autoscaling:UpdateAutoScalingGroup",
        "ec2:DescribeInstances",
        "ec2:RunInstances",
        "iam:CreateServiceLinkedRole",
    ),
    "AWS::AutoScaling::LifecycleHook": (
        "autoscaling:DeleteLifecycleHook",
        "autoscaling:DescribeLifecycleHooks",
        "autoscaling:PutLifecycleHook",
    ),
    "AWS::AutoScaling::ScalingPolicy": (
        "autoscaling:DeletePolicy",
        "autoscaling:DescribePolicies",
        "autoscaling:PutScalingPolicy",
    ),
    "AWS::AutoScaling::WarmPool": (
        "autoscaling:DeleteWarmPool",
        "autoscaling:DescribeWarmPool",
        "autoscaling:PutWarmPool",
    ),
    "AWS::Budgets::Budget": ("budgets:ModifyBudget", "budgets:ViewBudget", "budgets:TagResource"),
    "AWS::CloudWatch::Alarm": (
        "cloudwatch:DeleteAlarms",
        "cloudwatch:DescribeAlarms",
        "cloudwatch:PutMetricAlarm",
        "cloudwatch:TagResource",
    ),
    "AWS::CloudWatch::Dashboard": (
        "cloudwatch:DeleteDashboards",
        "cloudwatch:GetDashboard",
        "cloudwatch:PutDashboard",
    ),
    "AWS::EC2::LaunchTemplate": (
        "ec2:CreateLaunchTemplate",
        "ec2:CreateLaunchTemplateVersion",
        "ec2:DeleteLaunchTemplate",
        "ec2:DescribeLaunchTemplates",
        "ec2:DescribeLaunchTemplateVersions",
        "ssm:GetParameters",
        *_NETWORK,
    ),
    "AWS::EC2::InternetGateway": (
        "ec2:CreateInternetGateway",
        "ec2:DeleteInternetGateway",
        "ec2:DescribeInternetGateways",
        *_NETWORK,
    ),
    "AWS::EC2::NetworkAcl": (
        "ec2:CreateNetworkAcl",
        "ec2:DeleteNetworkAcl",
        "ec2:DescribeNetworkAcls",
        "ec2:ReplaceNetworkAclAssociation",
        *_NETWORK,
    ),
    "AWS::EC2::NetworkAclEntry": ("ec2:CreateNetworkAclEntry", "ec2:DeleteNetworkAclEntry"),
    "AWS::EC2::Route": ("ec2:CreateRoute", "ec2:DeleteRoute"),
    "AWS::EC2::RouteTable": ("ec2:CreateRouteTable", "ec2:DeleteRouteTable", "ec2:DescribeRouteTables", *_NETWORK),
    "AWS::EC2::SecurityGroup": (
        "ec2:AuthorizeSecurityGroupEgress",
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:CreateSecurityGroup",
        "ec2:DeleteSecurityGroup",
        "ec2:DescribeSecurityGroups",
        "ec2:RevokeSecurityGroupEgress",
        "ec2:RevokeSecurityGroupIngress",
        *_NETWORK,
    ),
    "AWS::EC2::SecurityGroupEgress": (
        "ec2:AuthorizeSecurityGroupEgress",
        "ec2:DescribeSecurityGroupRules",
        "ec2:RevokeSecurityGroupEgress",
    ),
    "AWS::EC2::SecurityGroupIngress": (
        "ec2:AuthorizeSecurityGroupIngress",
        "ec2:DescribeSecurityGroupRules",
        "ec2:RevokeSecurityGroupIngress",
    ),
    "AWS::EC2::Subnet": (
        "ec2:CreateSubnet",
        "ec2:DeleteSubnet",
        "ec2:DescribeAvailabilityZones",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:ModifySubnetAttribute",
        *_NETWORK,
    ),
    "AWS::EC2::SubnetNetworkAclAssociation": ("ec2:DescribeNetworkAcls", "ec2:ReplaceNetworkAclAssociation"),
    "AWS::EC2::SubnetRouteTableAssociation": ("ec2:AssociateRouteTable", "ec2:DisassociateRouteTable"),
    "AWS::EC2::VPC": (
        "ec2:CreateVpc",
        "ec2:DeleteVpc",
        "ec2:DescribeVpcAttribute",
        "ec2:DescribeVpcs",
        "ec2:ModifyVpcAttribute",
        *_NETWORK,
    ),
    "AWS::EC2::VPCEndpoint": (
        "ec2:CreateVpcEndpoint",
        "ec2:DeleteVpcEndpoints",
        "ec2:DescribeVpcEndpoints",
        "ec2:ModifyVpcEndpoint",
        *_NETWORK,
    ),
    "AWS::EC2::VPCGatewayAttachment": ("ec2:AttachInternetGateway", "ec2:DetachInternetGateway"),
    "AWS::ElastiCache::ServerlessCache": (
        "ec2:CreateVpcEndpoint",
        "elasticache:AddTagsToResource",
        "elasticache:CreateServerlessCache",
        "elasticache:DeleteServerlessCache",
        "elasticache:DescribeServerlessCaches",
        "elasticache:ListTagsForResource",
        "elasticache:ModifyServerlessCache",
        "iam:CreateServiceLinkedRole",
    ),
    "AWS::ElastiCache::User": (
        "elasticache:AddTagsToResource",
        "elasticache:CreateUser",
        "elasticache:DeleteUser",
        "elasticache:DescribeUsers",
        "elasticache:ListTagsForResource",
        "elasticache:ModifyUser",
    ),
    "AWS::ElastiCache::UserGroup": (
        "elasticache:AddTagsToResource",
        "elasticache:CreateUserGroup",
        "elasticache:DeleteUserGroup",
        "elasticache:DescribeUserGroups",
        "elasticache:ListTagsForResource",
        "elasticache:ModifyUserGroup",
    ),
    "AWS::ElasticLoadBalancingV2::": (
        "elasticloadbalancing:AddTags",
        "elasticloadbalancing:CreateListener",
        "elasticloadbalancing:CreateLoadBalancer",
        "elasticloadbalancing:CreateRule",
        "elasticloadbalancing:CreateTargetGroup",
        "elasticloadbalancing:DeleteListener",
        "elasticloadbalancing:DeleteLoadBalancer",
        "elasticloadbalancing:DeleteRule",
        "elasticloadbalancing:DeleteTargetGroup",
        "elasticloadbalancing:DescribeListeners",
        "elasticloadbalancing:DescribeLoadBalancerAttributes",
        "elasticloadbalancing:DescribeLoadBalancers",
        "elasticloadbalancing:DescribeRules",
        "elasticloadbalancing:DescribeTags",
        "elasticloadbalancing:DescribeTargetGroupAttributes",
        "elasticloadbalancing:DescribeTargetGroups",
        "elasticloadbalancing:ModifyListener",
        "elasticloadbalancing:ModifyLoadBalancerAttributes",
        "elasticloadbalancing:ModifyTargetGroup",
        "elasticloadbalancing:ModifyTargetGroupAttributes",
        "iam:CreateServiceLinkedRole",
    ),
    "AWS::IAM::InstanceProfile": (
        "iam:AddRoleToInstanceProfile",
        "iam:CreateInstanceProfile",
        "iam:DeleteInstanceProfile",
        "iam:GetInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
    ),
    "AWS::IAM::Policy": ("iam:DeleteRolePolicy", "iam:GetRolePolicy", "iam:PutRolePolicy"),
    "AWS::IAM::Role": _ROLE,
    "AWS::KMS::": (
        "kms:CreateAlias",
        "kms:CreateKey",
        "kms:DeleteAlias",
        "kms:DescribeKey",
        "kms:EnableKeyRotation",
        "kms:GetKeyPolicy",
        "kms:GetKeyRotationStatus",
        "kms:PutKeyPolicy",
        "kms:ScheduleKeyDeletion",
        "kms:TagResource",
    ),
    "AWS::Lambda::Permission": ("lambda:AddPermission", "lambda:GetPolicy", "lambda:RemovePermission"),
    "AWS::Logs::LogGroup": _LOGS,
    "AWS::Logs::MetricFilter": ("logs:DeleteMetricFilter", "logs:DescribeMetricFilters", "logs:PutMetricFilter"),
    "AWS::S3::Bucket": (
        "s3:CreateBucket",
        "s3:DeleteBucket",
        "s3:PutBucketPublicAccessBlock",
        "s3:PutBucketOwnershipControls",
        "s3:PutBucketTagging",
        "s3:PutBucketVersioning",
        "s3:PutEncryptionConfiguration",
        "s3:PutLifecycleConfiguration",
    ),
    "AWS::S3::BucketPolicy": ("s3:DeleteBucketPolicy", "s3:GetBucketPolicy", "s3:PutBucketPolicy"),
    "AWS::S3Express::": (
        "s3express:CreateBucket",
        "s3express:CreateSession",
        "s3express:DeleteBucket",
        "s3express:DeleteBucketPolicy",
        "s3express:GetBucketPolicy",
        "s3express:GetEncryptionConfiguration",
        "s3express:GetLifecycleConfiguration",
        "s3express:ListAllMyDirectoryBuckets",
        "s3express:PutBucketPolicy",
        "s3express:PutEncryptionConfiguration",
        "s3express:PutLifecycleConfiguration",
        "s3express:TagResource",
    ),
    "AWS::SNS::": (
        "sns:CreateTopic",
        "sns:DeleteTopic",
        "sns:GetTopicAttributes",
        "sns:ListSubscriptionsByTopic",
        "sns:ListTagsForResource",
        "sns:SetTopicAttributes",
        "sns:Subscribe",
        "sns:TagResource",
        "sns:Unsubscribe",
    ),
    "AWS::Serverless::Function": _FUNCTION,
    "AWS::Serverless::LayerVersion": (
        "lambda:DeleteLayerVersion",
        "lambda:GetLayerVersion",
        "lambda:PublishLayerVersion",
    ),
    "AWS::Serverless::StateMachine": _MACHINE,
    "AWS::StepFunctions::StateMachine": _MACHINE,
    "AWS::WAFv2::": (
        "wafv2:AssociateWebACL",
        "wafv2:CreateWebACL",
        "wafv2:DeleteWebACL",
        "wafv2:DisassociateWebACL",
        "wafv2:GetWebACL",
        "wafv2:GetWebACLForResource",
        "wafv2:ListTagsForResource",
        "wafv2:TagResource",
        "wafv2:UpdateWebACL",
        "elasticloadbalancing:SetWebACL",
    ),
}
"""Actions by resource type, or by the beginning of types that ends in "::"."""

_NAMED = {
    "cloudformation": (
        "arn:{p}:cloudformation:{r}:{a}:stack/{s}/*",
        "arn:{p}:cloudformation:{r}:{a}:stack/aws-sam-cli-managed-default/*",
        "arn:{p}:cloudformation:{r}:aws:transform/*",
    ),
    "iam": ("arn:{p}:iam::{a}:role/{s}-*", "arn:{p}:iam::{a}:instance-profile/{s}-*"),
    "lambda": ("arn:{p}:lambda:{r}:{a}:function:{s}-*", "arn:{p}:lambda:{r}:{a}:layer:{s}-*"),
    "states": ("arn:{p}:states:{r}:{a}:stateMachine:{s}-*",),
    "logs": ("arn:{p}:logs:{r}:{a}:log-group:/serfer/{s}/*",),
    "sns": ("arn:{p}:sns:{r}:{a}:{s}-*",),
    "cloudwatch": ("arn:{p}:cloudwatch:{r}:{a}:alarm:{s}-*", "arn:{p}:cloudwatch::{a}:dashboard/{s}-*"),
    "budgets": ("arn:{p}:budgets::{a}:budget/{s}-*",),
    "s3": ("arn:{p}:s3:::{s}-*", "arn:{p}:s3:::{s}-*/*", "arn:{p}:s3:::aws-sam-cli-*", "arn:{p}:s3:::aws-sam-cli-*/*"),
}
_UNNAMED = frozenset(
    {
        "cloudformation:GetTemplateSummary",
        "cloudwatch:DescribeAlarms",
        "iam:CreateServiceLinkedRole",
        "logs:DescribeLogGroups",
        "states:ValidateStateMachineDefinition",
    }
)
"""Actions that know no resource of the stack, though others of their service do."""


def actions(types: Iterable[str]) -> list[str]:
    """Return what deploying, updating and removing resources of these types takes; raises KeyError for unknown ones."""
    return sorted({*BASE, *(action for kind in set(types) for action in _of(kind))})


def _of(kind: str) -> tuple[str, ...]:
    if kind in DEPLOYER_ACTIONS:
        return DEPLOYER_ACTIONS[kind]
    family = kind[: kind.rindex("::") + 2]
    return DEPLOYER_ACTIONS[family]


def unlisted(types: Iterable[str]) -> list[str]:
    """Return the types of which nobody said what deploying them takes."""
    known = {*DEPLOYER_ACTIONS}
    return sorted({kind for kind in types if not {kind, kind[: kind.rindex("::") + 2]} & known})


def policy(types: Iterable[str], stack: str, region: str, account: str, partition: str = "aws") -> dict[str, Any]:
    """Return the IAM policy of whoever deploys `stack`: one statement for each service."""
    services: dict[str, list[str]] = {}
    for action in actions(types):
        service = "unnamed" if action in _UNNAMED else action.partition(":")[0]
        services.setdefault(service, []).append(action)
    names = {"p": partition, "r": region, "a": account, "s": stack}
    return {
        "Version": "2012-10-17",
        "Statement": [_statement(service, found, names, region) for service, found in sorted(services.items())],
    }


def _statement(service: str, found: list[str], names: Mapping[str, str], region: str) -> dict[str, Any]:
    said: dict[str, Any] = {"Sid": service.capitalize(), "Effect": "Allow", "Action": found}
    if service in _NAMED:
        return {**said, "Resource": [pattern.format_map(names) for pattern in _NAMED[service]]}
    if service == "unnamed":
        return {**said, "Resource": "*"}
    return {**said, "Resource": "*", "Condition": {"StringEquals": {"aws:RequestedRegion": region}}}
