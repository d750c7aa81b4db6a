from tests import weekly


class Shard:
    """Stand for a shard that passes, or not, and counts its runs."""

    def __init__(self, name, *, passes):
        self.name, self.passes, self.runs = name, passes, 0

    def run(self):
        self.runs += 1
        return self.passes


def test_a_shard_that_passed_is_not_run_again_at_the_same_commit(tmp_path):
    good, bad, said = Shard("tests/good.py", passes=True), Shard("tests/bad.py", passes=False), []
    for _ in range(2):
        assert weekly.run([good, bad], tmp_path / "commit", said.append) == ["tests/bad.py"]
    assert (good.runs, bad.runs) == (1, 2)
    assert [line for line in said if "passed before" in line] == ["[1/2] tests/good.py: passed before, in 0.0 minutes"]
    assert weekly.run([good], tmp_path / "another commit", said.append) == []
    assert good.runs == 2
