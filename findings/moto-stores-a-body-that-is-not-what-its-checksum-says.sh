#!/usr/bin/env bash
# moto 5.2.5 stores an object whose Content-MD5 or x-amz-checksum-* is another body's, and deletes 1,001 keys by one request. S3 refuses the
# first with 400 BadDigest and the second with 400 MalformedXML, so a test against moto that sends damaged or too much data passes.
# One expects that a mock which knows EntityTooSmall and 412 checks digests, too. (ministack 1.5.33 and SeaweedFS 4.48 do.)
#
# Seen on 2026-11-30:
#   crc32c of another body  200
#   sha256 of another body  200
#   md5 of another body     200
#   1,001 keys deleted      200
#   a first part of 1 MiB   400 EntityTooSmall
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
. venv/bin/activate
pip install --quiet --no-compile --disable-pip-version-check moto[s3]==5.2.5 boto3==1.44.5
pip freeze
python <<'EOF'
import base64

import boto3
from botocore.exceptions import ClientError
from moto import mock_aws


def status(call, **given):
    try:
        return str(call(**given)["ResponseMetadata"]["HTTPStatusCode"])
    except ClientError as error:
        return f"{error.response['ResponseMetadata']['HTTPStatusCode']} {error.response['Error']['Code']}"


def zeros(count):
    return base64.b64encode(bytes(count)).decode()


with mock_aws():
    s3 = boto3.client("s3", "us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing")
    s3.create_bucket(Bucket="bucket")
    place = {"Bucket": "bucket", "Key": "key"}
    upload = {**place, "UploadId": s3.create_multipart_upload(**place)["UploadId"]}
    tags = [s3.upload_part(**upload, PartNumber=number, Body=bytes(1 << 20))["ETag"] for number in (1, 2)]
    parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(tags, 1)]
    keys = [{"Key": f"key{number}"} for number in range(1001)]
    seen = {
        "crc32c of another body": status(s3.put_object, **place, Body=b"body", ChecksumCRC32C=zeros(4)),
        "sha256 of another body": status(s3.put_object, **place, Body=b"body", ChecksumSHA256=zeros(32)),
        "md5 of another body": status(s3.put_object, **place, Body=b"body", ContentMD5=zeros(16)),
        "1,001 keys deleted": status(s3.delete_objects, Bucket="bucket", Delete={"Objects": keys}),
        "a first part of 1 MiB": status(s3.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts}),
    }
for what, answer in seen.items():
    print(f"{what:22}  {answer}")

assert [*seen.values()] == ["200"] * 4 + ["400 EntityTooSmall"]
EOF
