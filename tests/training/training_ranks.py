"""A job that joins and then fails in the way that the command line asks; started by the tests."""

import os
import signal
import sys

from hyperparallel import Transport
from hyperparallel.algebra import Action
from hyperparallel.cells.transport import Tag


def main(how: str) -> None:
    """Fail on rank 1, while rank 0 waits for a message from it."""
    if how == "before joining" and os.environ["MS_ROLE"] == "MS_WORKER" and os.environ["RANK_ID"] == "1":
        raise KeyError("before joining")
    transport = Transport.start()
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
    main(sys.argv[1])
