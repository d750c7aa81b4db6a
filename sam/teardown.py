"""Delete a stack and all that it made: `serfer deploy destroy`.

CloudFormation deletes no bucket that still holds objects, and what others write (a load balancer's logs) may come
between emptying and deleting; so both are tried a few times. SAM CLI's copies of the packages go as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import ClientError, WaiterError

from serfer.core.errors import UnavailableError
from serfer.sam.stacks import companion_stack, find_stack, our_stack

REPOSITORY = "AWS::ECR::Repository"
BUCKETS = ("AWS::S3::Bucket", "AWS::S3Express::DirectoryBucket")
_TRIES = 3
_FORBIDDEN = 403
_IMAGES_AT_ONCE = 100  # that one request deletes
_WAIT_S, _WAITS = 15, 240
_AT_ONCE = 1000  # keys that one request deletes
_ARTEFACTS = "aws-sam-cli-managed-default"
"""The stack in which SAM CLI keeps the bucket that it uploads to."""


def tear_down(stack: str, session: Any, progress: Callable[[str], None]) -> None:  # noqa: ANN401 - boto3 has no types here
    """Empty the stack's buckets, delete it, wait, and delete the images and packages that SAM CLI uploaded for it."""
    formation, store = session.client("cloudformation"), session.client("s3")
    identity = our_stack(formation, stack).identity
    for attempt in range(_TRIES):
        for bucket in _resources(formation, identity, *BUCKETS):
            if name := bucket.get("PhysicalResourceId"):
                progress(f"emptying {name}")
                _empty(store, name)
        progress(f"deleting {stack}: CloudFormation takes minutes")
        formation.delete_stack(StackName=identity)
        left = _left(formation, identity)
        if not left:
            _forget_images(stack, session, progress)
            forget_uploads(stack, session, progress)
            return
        progress(f"try {attempt + 1}: {', '.join(left)} could not be deleted")
    raise UnavailableError(
        f"{stack} is not gone: {', '.join(left)} could not be deleted; see its events, and try again"
    )


def _resources(formation: Any, identity: str, *types: str) -> Iterator[Any]:  # noqa: ANN401 - same
    for page in formation.get_paginator("list_stack_resources").paginate(StackName=identity):
        for resource in page["StackResourceSummaries"]:
            if resource["ResourceStatus"] != "DELETE_COMPLETE" and (not types or resource["ResourceType"] in types):
                yield resource


def _empty(store: Any, bucket: str, prefix: str = "") -> None:  # noqa: ANN401 - same
    directory = bucket.endswith("--x-s3")  # which has no versions
    kinds = ("Contents",) if directory else ("Versions", "DeleteMarkers")
    pages = store.get_paginator("list_objects_v2" if directory else "list_object_versions")
    for page in pages.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": _AT_ONCE}):
        items = [item for kind in kinds for item in page.get(kind, ())]
        named = [{name: item[name] for name in ("Key", "VersionId") if name in item} for item in items]
        if named:
            failed = store.delete_objects(Bucket=bucket, Delete={"Objects": named, "Quiet": True}).get("Errors")
            if failed:
                raise UnavailableError(f"{bucket}: {failed[0]['Key']} cannot be deleted: {failed[0]['Code']}")
    for page in store.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for upload in page.get("Uploads", ()):
            store.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])


def _left(formation: Any, identity: str) -> list[str]:  # noqa: ANN401 - same
    try:
        waiter = formation.get_waiter("stack_delete_complete")
        waiter.wait(StackName=identity, WaiterConfig={"Delay": _WAIT_S, "MaxAttempts": _WAITS})
    except WaiterError:
        return [left["LogicalResourceId"] for left in _resources(formation, identity)] or ["the stack itself"]
    return []


def _forget_images(stack: str, session: Any, progress: Callable[[str], None]) -> None:  # noqa: ANN401 - same
    """Delete the repositories that SAM CLI made for a stack's container images: their images, and their stack."""
    formation = session.client("cloudformation")
    try:
        companion = find_stack(formation, companion_stack(stack))
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != _FORBIDDEN:
            raise
        return  # a deployer of packages alone does not see it, nor can have made it
    if companion is None:
        return
    registry = session.client("ecr")
    for repository in _resources(formation, companion.identity, REPOSITORY):
        name = repository["PhysicalResourceId"]
        progress(f"emptying {name}")
        for page in registry.get_paginator("list_images").paginate(
            repositoryName=name, PaginationConfig={"PageSize": _IMAGES_AT_ONCE}
        ):
            if page["imageIds"]:
                registry.batch_delete_image(repositoryName=name, imageIds=page["imageIds"])
    formation.delete_stack(StackName=companion.identity)
    if left := _left(formation, companion.identity):
        raise UnavailableError(f"{companion.name} is not gone: {', '.join(left)} could not be deleted; see its events")


def forget_uploads(stack: str, session: Any, progress: Callable[[str], None]) -> None:  # noqa: ANN401 - same
    """Delete what SAM CLI uploaded under the stack's name, which samconfig.toml gives as prefix."""
    formation, store = session.client("cloudformation"), session.client("s3")
    try:
        outputs = formation.describe_stacks(StackName=_ARTEFACTS)["Stacks"][0].get("Outputs", ())
    except ClientError:  # SAM CLI never made one here
        return
    for bucket in (output["OutputValue"] for output in outputs if output["OutputKey"] == "SourceBucket"):
        progress(f"deleting {stack}/ from {bucket}")
        _empty(store, bucket, f"{stack}/")
