"""`serfer deploy apply`: it checks, then SAM CLI builds and deploys; what that says decides."""

import boto3
import pytest

from tests.sam.builds import build
from tests.sam.deployed import called


@pytest.fixture
def sam_cli(tmp_path, monkeypatch, aws):  # noqa: ARG001 - a fixture
    """A program in place of SAM CLI that fails where SAM_FAILS names its first argument; return what it was asked."""
    log, program = tmp_path / "log", tmp_path / "sam"
    program.write_text(f'#!/bin/sh\necho "$(basename $PWD) $*" >> {log}\ntest "$1" != "$SAM_FAILS"\n')
    program.chmod(0o700)
    monkeypatch.setattr("serfer.sam.quotas.find_sam", lambda: program)
    return lambda: log.read_text().splitlines() if log.exists() else []


def test_a_new_stack_is_built_and_deployed_in_its_environment(sam_cli, tmp_path):
    assert called("apply", build(tmp_path / "build"), "prod") == 0
    assert sam_cli() == ["build build --config-env prod", "build deploy --config-env prod"]


def test_what_fails_to_build_is_not_deployed(sam_cli, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SAM_FAILS", "build")
    assert called("apply", build(tmp_path / "build")) == 4
    assert sam_cli() == ["build build --config-env dev"]
    assert capfd.readouterr().err == "serfer: sam build ended with 1: what it says above says why\n"


def test_what_would_delete_the_served_plan_is_not_built(sam_cli, tmp_path, capfd):
    template = '{"Resources": {"A": {"Type": "AWS::S3::Bucket"}}, "Outputs": {"Serving": {"Value": "0123456789ab"}}}'
    boto3.client("cloudformation").create_stack(StackName="demo-dev", TemplateBody=template)
    assert called("apply", build(tmp_path / "build"), "dev") == 2
    assert sam_cli() == []
    assert "demo-dev serves the plan 0123456789ab" in capfd.readouterr().err
    assert called("apply", tmp_path / "build", "dev", "--replace") == 0
    assert len(sam_cli()) == 2
