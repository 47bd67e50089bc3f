"""Fill the disk that a folder is on, save, and go on from what was saved before; started by `test_checkpoint.py`."""

import json
import sys
from pathlib import Path

import numpy as np
from checkpoint_case import FACTS, tiny_runner, train, values

from hyperparallel import Transport
from hyperparallel.errors import CheckpointError
from hyperparallel.training.checkpoint import Checkpoints, restore


def main() -> None:
    """Print what happened, as one line of JSON."""
    folder, runner, message = Path(sys.argv[1]), tiny_runner(), ""
    checkpoints = Checkpoints(folder, 3, Transport())
    train(runner, 0, 1)
    checkpoints.save(runner, FACTS)
    before = values(runner)
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            ballast.truncate(ballast.tell() - 2 * 4096)  # leave room for a folder, not for the tensors
    train(runner, 1, 2)
    try:
        checkpoints.save(runner, FACTS)
    except CheckpointError as error:
        message = str(error)
    left = [path.name for path in (folder / "checkpoints").iterdir()]
    restored = restore(folder, runner)["step"]
    equal = all(np.array_equal(before[name], value) for name, value in values(runner).items())
    print(json.dumps({"message": message, "left": left, "restored": restored, "equal": equal}))


if __name__ == "__main__":
    main()
