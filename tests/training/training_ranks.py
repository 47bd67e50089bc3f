"""A job that fails in the way that the command line asks, before it has joined or after; started by the tests."""

import atexit
import os
import signal
import sys
import time


def alone(how: str, rank: str) -> None:
    """Fail on rank 1, or in the scheduler, while the other processes do something long."""
    if rank == "1" and how == "raises":
        raise KeyError("before joining")
    if rank == "1" and how in ("killed", "kills msrun"):
        os.kill(os.getpid() if how == "killed" else os.getppid(), signal.SIGKILL)
    if rank == "scheduler" and how == "kills scheduler":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def together(how: str) -> None:
    """Fail on rank 1, while rank 0 waits for a message from it."""
    from hyperparallel import Transport
    from hyperparallel.algebra import Action
    from hyperparallel.cells.transport import Tag

    transport = Transport.start()
    if how == "crashes on its way out":
        atexit.register(os.kill, os.getpid(), signal.SIGSEGV)
    if how in ("ends well", "crashes on its way out"):
        transport.leave()
        return
    if transport.rank == 0:
        transport.receive(1, Tag(Action(0, "SEND_F", 0), 0))
    if how == "raise":
        raise KeyError("rank 1 broke")
    if how == "sentence":
        print("hyperparallel: the data of rank 1 are wrong", file=sys.stderr)
        sys.exit(2)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "alone":
        alone(sys.argv[2], os.environ["RANK_ID"] if os.environ["MS_ROLE"] == "MS_WORKER" else "scheduler")
    else:
        together(sys.argv[2])
