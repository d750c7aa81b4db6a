"""INFaaS' readings in the simulated cluster: what they are called, what they differ by, and what packing does."""

from dataclasses import replace

from serfer_bench.study.papers.infaas import figure5, figure6, figure7
from serfer_bench.study.papers.infaas.cluster import HEEDING, INFAAS, PACKING, Cluster, Worker


def test_figures_5_to_7_have_one_infaas_and_its_other_readings_differ_by_their_rule_alone():
    for figure, readings in ((figure5, {HEEDING, PACKING}), (figure6, {HEEDING}), (figure7, {HEEDING, PACKING})):
        found = {system.name: system for system in figure.systems()}
        letter = found[INFAAS]
        assert (letter.heeds, letter.packs) == (False, False)
        assert {name for name in found if name.startswith(f"{INFAAS}, ")} == readings
        for name in readings:
            assert found[name] == replace(letter, name=name, heeds=name == HEEDING, packs=name == PACKING)


def test_queries_are_packed_onto_one_worker_while_it_answers_in_time_and_spread_without():
    *_, small = figure7.systems()[0].networks
    network = replace(small, first={f"{figure7.SMALL}-gpu": 2})
    workers = Worker("gpu 1", "gpu"), Worker("gpu 2", "gpu")
    letter = replace(figure7.systems()[0], networks=(network,), workers=workers, scales=False, most={})
    busy = {}
    for packs, each_s in ((False, 0.01), (True, 0.01), (True, 0.0004)):
        cluster = Cluster(replace(letter, packs=packs))
        measured = cluster.run(iter([(number * each_s, 0) for number in range(500)]), 500 * each_s)
        assert measured.late_share == 0 or each_s < 0.001
        busy[packs, each_s] = sorted(queue.empty_s > 0 for queue in cluster._queues.values())
    assert busy == {(False, 0.01): [True, True], (True, 0.01): [False, True], (True, 0.0004): [True, True]}
