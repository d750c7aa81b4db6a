"""Processes for work that computes alone: they end with the process that started them, however that ends."""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from serfer.local.die_with_parent import die_with


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of `workers` new Python processes, which an exception in the block, or an interrupt, kills at once.

    Linux kills them when this process dies: they hold the pipe of their tasks open themselves, so none would notice.
    The thread that submits the tasks has to live as long (see `die_with_parent`).
    """
    others = active_children()
    pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=die_with, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        for process in active_children():
            if process not in others:
                process.kill()  # what runs may take minutes, and nobody waits for it
        raise
    finally:
        pool.shutdown(cancel_futures=True)
