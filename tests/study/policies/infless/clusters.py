"""Functions and servers for the tests of INFless' autoscaling."""

from hypothesis import strategies as st

from serfer_bench.study.policies.infless.options import Sizes, function_of
from serfer_bench.study.policies.infless.profiles import Operator, Times
from serfer_bench.study.policies.infless.servers import Servers

BETA = 64 / 142
SIZES = Sizes((1, 2, 4, 8), (1, 2, 4), (0, 10, 20, 50), BETA)
RESNET = Operator("resnet-50", Times(61.0, 15.0, 145.0), Times(40.0, 6.8, 5.4, 0.6))
SMALL = Operator("small", Times(2.4, 0.14, 0.7), Times(2.7, 0.1, 0.03, 0.01))


def function(network=RESNET, slo_s=0.2, sizes=SIZES, **options):
    return function_of(network.name, network, slo_s, sizes, **options)


def servers(count=4, cores=8, gpus=2, sizes=SIZES):
    return Servers([(cores, gpus)] * count, sizes)


times = st.builds(Times, st.floats(1, 80), st.floats(0.1, 20), st.floats(0, 100), st.floats(0, 3))
networks = st.builds(Operator, st.just("drawn"), times, st.none() | times)
