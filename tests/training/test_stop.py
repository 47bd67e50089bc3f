"""SIGTERM is a wish while the context lasts, also one that came before."""

import signal

import pytest

from hyperparallel.training.stop import StopRequest


def test_sigterm_is_noted_and_the_handler_before_comes_back():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        with StopRequest() as stop:
            assert not stop.asked
            signal.raise_signal(signal.SIGTERM)
            assert stop.asked and not heard
        signal.raise_signal(signal.SIGTERM)
        assert heard == [1]
        with StopRequest() as stop, pytest.raises(KeyError):  # a new one knows nothing of the last
            assert not stop.asked
            raise KeyError
        assert signal.getsignal(signal.SIGTERM) not in (stop._ask, signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_one_that_came_while_sigterm_was_blocked_is_noted():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.raise_signal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.asked
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
