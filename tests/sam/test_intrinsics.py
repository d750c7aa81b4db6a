import pytest

from serfer.core.errors import UsageError
from serfer.sam.template.intrinsics import check_parameters
from tests.sam.offered import template

DECLARED = template("fleet", "valkey")["Parameters"]
ARN = "arn:aws:acm:us-east-1:123456789012:certificate/0a-1b"


@pytest.mark.parametrize(
    ("name", "value", "wants"),
    [
        ("Nothing", "1", "the template has AlarmEmail"),
        ("Serving", "zzz", "one of current"),
        ("LogRetentionDays", "999999", "one of 1, 3"),
        ("MinDrivers", "abc", "is a number"),
        ("MinDrivers", "1e999", "number from 1 up"),
        ("MinDrivers", "-5", "number from 1 up"),
        ("FirstZone", "9", "number from 0 to 5"),
        ("CertificateArn", "mine", "should match"),
    ],
)
def test_parameters_that_cloudformation_refuses_are_refused(name, value, wants):
    with pytest.raises(UsageError, match=f"--parameter {name}:? .*{wants}"):
        check_parameters(DECLARED, {name: value})


def test_valid_parameters_are_accepted():
    check_parameters(
        DECLARED, {"MinDrivers": "3", "CertificateArn": ARN, "Serving": "current", "LogRetentionDays": "30"}
    )
