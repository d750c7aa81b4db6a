import signal

from serfer.cli.shared.terminal import uninterrupted


def test_uninterrupted_restores_signal_handlers():
    """A command that runs within another program must not make it, or what it starts, deaf to SIGTERM."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with uninterrupted():
        assert [signal.getsignal(number) for number in numbers] == [signal.SIG_IGN] * 2
    assert [signal.getsignal(number) for number in numbers] == before
