"""Two at once: each file and record that two processes may change is changed by four; nothing is lost or half there."""

import multiprocessing
import traceback

from serfer.api.auth.keys import add_key, read_keys, remove_key

PROCESSES = range(4)
PATIENCE = 60.0


def by_four(work):
    """Call `work` with 0 to 3 in four processes, which begin together; each has to end without an error."""
    fork = multiprocessing.get_context("fork")  # starts in milliseconds, and takes a closure
    together = fork.Barrier(len(PROCESSES))

    def run(number):
        together.wait(PATIENCE)
        try:
            work(number)
        except BaseException:
            traceback.print_exc()
            raise

    processes = [fork.Process(target=run, args=(number,)) for number in PROCESSES]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
        process.kill()
    assert [process.exitcode for process in processes] == [0] * len(PROCESSES)


def test_a_file_of_keys_keeps_each_key_that_was_printed_and_none_that_was_removed(tmp_path):
    path = tmp_path / "keys.json"
    for process in PROCESSES:
        add_key(path, f"old-{process}", None)

    def change(process):
        for number in range(5):
            add_key(path, f"new-{process}-{number}", None)
        remove_key(path, f"old-{process}")

    by_four(change)
    assert {entry.name for entry in read_keys(path)} == {
        f"new-{process}-{n}" for process in PROCESSES for n in range(5)
    }
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}
