import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_lambdas_own_runtime_client_runs_under_its_own_python(python313, runtime313):
    code = "import awslambdaric.bootstrap, runtime_client, snapshot_restore_py; print(runtime_client.__file__)"
    done = subprocess.run(
        [str(python313), "-S", "-P", "-B", "-c", code],
        env={"PYTHONPATH": str(runtime313), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(f"{runtime313}/runtime_client.cpython-313"), done.stderr


def test_without_apt_python313_is_left_out_with_a_line_that_says_why(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "python313" / "set_up.py"), str(tmp_path / "python3.13")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "tests that need it will be skipped: apt-get is not on PATH" in done.stderr
    assert list(tmp_path.iterdir()) == []
