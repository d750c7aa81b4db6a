import logging

from serfer.local.acceptor import Shortage


def test_connections_that_cannot_be_accepted_are_logged_once_in_ten_seconds(caplog):
    caplog.set_level(logging.WARNING)
    times = iter([0.0, 0.0, 1.0, 9.9, 10.0, 10.0])
    shortage = Shortage(lambda: next(times))
    for _ in range(4):
        shortage.log(OSError(24, "Too many open files"))
    said = "connections wait to be accepted: Too many open files (raise the limit: ulimit -n)"
    assert [record.getMessage() for record in caplog.records] == [said] * 2
