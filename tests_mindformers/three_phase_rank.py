"""Be one worker of a dry run in three phases: compile the graphs of its step for Ascend, and run none.

python three_phase_rank.py --config X.yaml ...
"""

import sys

import mindspore as ms

from mindformers_patch.__main__ import parse, run


def compile_only(self, epoch, dataset, **_):
    """Stand in for `Model.train`."""
    self._train_network.compile(*next(iter(dataset.create_tuple_iterator(num_epochs=1))))
    print("\nstep compiled", flush=True)


ms.Model.train = compile_only

if __name__ == "__main__":
    run(parse(sys.argv[1:]))
