"""What the measured break-even says, and that its networks need no container image."""

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer_bench.core.container_settings import ContainerSettings
from serfer_bench.study.planner.breakeven_here import Measured, results


def measured(one, two, split):
    return Measured("lenet", 224, one, two, split, "1x2, 1", 0.25)


def test_ratios_say_how_many_times_faster_the_split_is():
    result = measured(100.0, 60.0, 50.0)
    assert result.speedup == pytest.approx(2.0)
    assert result.against_large == pytest.approx(1.2)
    assert result.as_dict()["speedup"] == result.speedup


def test_tables_name_the_measurements_and_their_spread():
    measurements = [measured(100.0, 60.0, 50.0), measured(10.0, 6.0, 20.0)]
    for text in (results(measurements).text(), results(measurements).markdown()):
        assert "2.00x" in text
        assert "0.50x" in text
        assert "at most +25%" in text
    assert results(measurements).markdown().startswith("| network |")


def test_only_the_package_limit_is_lifted():
    mine, shipped = ContainerSettings().facts(), shipped_aws()
    assert mine.functions.package_limit > shipped.functions.package_limit
    assert mine.functions.price_gb_second == shipped.functions.price_gb_second
    assert mine.redis == shipped.redis
