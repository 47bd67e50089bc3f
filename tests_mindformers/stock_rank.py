"""Compile a job as one rank of a dry run without the plugin, as MindFormers' users start their jobs.

python stock_rank.py CONFIG.yaml OUTPUT_FOLDER
"""

import os
import sys

import mindspore as ms
from mindformers import Trainer
from mindformers.core.context import build_context
from mindformers.tools.register import MindFormerConfig

from mindformers_patch.dryrun_rank import compiles


def main(path: str, output: str) -> None:
    """Compile; `compiles` is the one thing of ours, and it registers nothing."""
    ms.Model.train = compiles(0)
    config = MindFormerConfig(path)
    config.output_dir = output
    os.environ["RUN_MODE"] = config.run_mode
    build_context(config)
    Trainer(config).train()
    assert "mindformers_patch.register" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
