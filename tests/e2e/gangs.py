"""Networks whose stages run as gangs, and their plans."""

import json
import os
import signal
import threading
import time

import numpy as np
import onnx

import serfer
from serfer.core.errors import InputError
from serfer.core.keys import inbox_key
from serfer.core.plan.borders import BORDER_HEADER
from serfer.core.wire import decode_task
from serfer.local.lambda_.pool import EnvironmentPool
from serfer.storage import open_store
from serfer.storage.exchange import START
from tests.e2e.conftest import PATIENCE
from tests.e2e.small import CLASSES, LABELS, PREPROCESS, SIZE, hand_on
from tests.splitter.models import Net

BLOCKS = ("narrow0", "narrow1", "pool.tiles")


def residual(size, *, excite=False):
    """Return a stem, two bottlenecks with skips, pooling and a linear layer; `excite` puts sums into each block."""
    net = Net(3, *size)
    x = net.op("Relu", net.conv("x", 3, 8, [3, 3], pads=[1, 1, 1, 1]), output="stem")
    for block in range(2):
        narrow = net.op("Relu", net.conv(x, 8, 4, [1, 1]), output=f"narrow{block}")
        y = net.op("Relu", net.conv(narrow, 4, 4, [3, 3], pads=[1, 1, 1, 1]), output=f"mid{block}")
        y = net.conv(y, 4, 8, [1, 1])
        if excite:
            mean = net.op("GlobalAveragePool", y, output=f"mean{block}")
            gate = net.op("Sigmoid", net.conv(net.op("Relu", net.conv(mean, 8, 2, [1, 1])), 2, 8, [1, 1]))
            y = net.op("Mul", y, gate)
        x = net.op("Relu", net.op("Add", y, x), output=f"block{block}")
    pooled = net.op("GlobalAveragePool", x, output="pool")
    return net.model(net.linear(net.flat(pooled), 8, CLASSES))


def split_gang(directory, model=None, *, grids=("2x1", "2x1", "2x1", "1"), cuts=BLOCKS, inline=(), **options):
    """Split a network into a plan with gangs, its stages handing on through the store; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(model or residual((SIZE, SIZE)), directory / "net.onnx")
    chosen = {"preprocess": PREPROCESS, "labels": LABELS, "activation": "softmax", "gang": "always", **options}
    serfer.split(str(directory / "net.onnx"), out=directory / "plan", grids=list(grids), cuts=list(cuts), **chosen)
    return hand_on(directory / "plan", inline)


def images(plan, count=1, seed=0):
    shape = plan.input
    random = np.random.default_rng(seed)
    return random.standard_normal((count, shape.channels, shape.height, shape.width), dtype=np.float32)


def ran(result):
    return [number for number, stage in enumerate(result.report.stages) if stage.gang is not None]


class Invocations:
    """What the environments of local Lambda services in this process are busy with; it may be waited for."""

    def __init__(self, monkeypatch):
        self._changed = threading.Condition()
        self._busy = {}
        self._environments = set()
        self.seen = []  # every task, in the order of arrival
        place, freed = EnvironmentPool._place, EnvironmentPool._freed

        def placed(pool, function, invocation):
            environment = place(pool, function, invocation)
            if environment is not None:
                with self._changed:
                    self._environments.add(environment)
                    self._busy[environment] = _task(invocation.payload)
                    self.seen.append(self._busy[environment])
                    self._changed.notify_all()
            return environment

        def ended(pool, environment):
            freed(pool, environment)
            with self._changed:
                self._busy.pop(environment, None)
                self._changed.notify_all()

        monkeypatch.setattr(EnvironmentPool, "_place", placed)
        monkeypatch.setattr(EnvironmentPool, "_freed", ended)

    def stop(self):
        """Hold every worker still once it waits for an invocation, so that no later one begins."""
        self._wait(lambda: all(one._next or one.dead for one in self._environments))
        self._signal(signal.SIGSTOP)

    def members(self, count):
        """Wait for the invocations of a gang of `count` members; return one's task, and the process ids by tile."""

        def found():
            busy = {task.tile: (task, one._process) for one, task in self._busy.items() if task and task.gang}
            return busy if len(busy) == count and all(process for _, process in busy.values()) else None

        members = self._wait(found)
        return members[0][0], {tile: process.pid for tile, (_, process) in members.items()}

    def kill(self, function):
        """Kill every environment of a function, idle ones too; return how many there were."""
        alive = [one for one in self._environments if one.function.name == function and one._process and not one.dead]
        for one in alive:
            os.kill(one._process.pid, signal.SIGKILL)
        return len(alive)

    def resume(self):
        self._signal(signal.SIGCONT)

    def _signal(self, number):
        for one in self._environments:
            if one._process and not one.dead:
                os.kill(one._process.pid, number)

    def idle(self, but=()):
        """Wait until no environment is busy, except with these tiles; return the time."""
        self._wait(lambda: all(task and task.tile in but for task in self._busy.values()))
        return time.monotonic()

    def _wait(self, condition):
        with self._changed:
            deadline = time.monotonic() + PATIENCE
            while not (value := condition()):
                assert time.monotonic() < deadline, self._busy
                self._changed.wait(0.05)  # an environment's process starts without notice
            return value


def _task(payload):
    try:
        return decode_task(json.loads(payload))
    except InputError:
        return None


def wait_sent(url, task, members, stage, tile):
    """Wait until a member has sent its borders of a stage, by the board of its gang."""
    board, cursor = inbox_key(task.query, task.stage, members), START
    with open_store(url) as store:
        exchange = store.exchange()
        while True:
            received = exchange.receive(board, cursor, PATIENCE)
            assert received
            cursor = received[-1].cursor
            if any(BORDER_HEADER.unpack(value) == (stage, tile) for _, value in received):
                exchange.close()
                return
