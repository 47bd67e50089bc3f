"""Measure how long one rank's graph takes to compile for Ascend, against micro-batches and layers per stage.

    python scripts/compile_time.py [--block small] [--micro-batches 4,8,16,32,64,128] [--layers 2,4,8] [--rank 1]

A small block is a projection with a residual; a decoder block is that of the models here, with attention. Each
compilation is rank 1 of 4 under 1f1b, in a process of its own in MindSpore's dry run. Printed are seconds of
the whole compilation by the wall clock and by the processor; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

import numpy as np
from mindspore import nn, ops

from hyperparallel import Layer, derive, model_spec
from hyperparallel.cells.graph import GraphRunner
from hyperparallel.cells.shapes import TensorSpec
from hyperparallel.cells.transport import Transport
from hyperparallel.dryrun import gist, run_ranks
from hyperparallel.models import DecoderConfig, MllmConfig, mllm

MARK = "compiled: "
RANKS = 4


class SmallBlock(nn.Cell):
    """A projection with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(64, 64)

    def construct(self, x_BD):
        """Apply the block."""
        return x_BD + ops.relu(self.dense(x_BD))


class SmallHead(nn.Cell):
    """Squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(64, 1)

    def construct(self, x_BD, y_B1):
        """Return the loss and its weight."""
        error_B1 = self.dense(x_BD) - y_B1
        return (error_B1 * error_B1).sum(), ops.ones_like(y_B1).sum()


def small_model(count: int) -> tuple[Sequence[Layer], dict[str, TensorSpec]]:
    """List small blocks and a head."""
    blocks = [
        Layer(f"llm.{index}", "llm", SmallBlock, columns=() if index else ("x",), carry=lambda _: [(4, 64)])
        for index in range(count - 1)
    ]
    columns = {"x": TensorSpec((4, 64)), "y": TensorSpec((4, 1))}
    return [*blocks, Layer("llm.head", "llm", SmallHead, columns=("y",))], columns


def decoder_model(count: int) -> tuple[Sequence[Layer], dict[str, TensorSpec]]:
    """List an embedding, decoder blocks and a head."""
    llm = DecoderConfig(vocab_size=64, width=64, depth=count - 2, heads=4, kv_heads=2, ffn=128, max_length=32)
    columns = dict.fromkeys(("input_ids", "labels"), TensorSpec((2, 32), "int32"))
    return mllm(MllmConfig(llm=llm, image_token=3)), columns


def compile_one(block: str, micro_batches: int, layers: int) -> None:
    """Be one rank of a dry run: build, compile, print the time."""

    model, columns = {"small": small_model, "decoder": decoder_model}[block](RANKS * layers)
    plan = derive("1f1b(llm)", model_spec(model), RANKS, micro_batches)
    transport = Transport.simulate()
    runner = GraphRunner(plan, model, columns, transport=transport)
    batch = [{name: np.zeros(spec.shape, spec.dtype) for name, spec in columns.items()}] * micro_batches
    wall, processor = time.perf_counter(), time.process_time()
    runner.dry_run(batch, run=False)
    print(MARK + json.dumps([time.perf_counter() - wall, time.process_time() - processor]), flush=True)


def measure(block: str, micro_batches: int, layers: int, rank: int) -> tuple[float, float]:
    """Compile in a process of its own; return seconds of wall clock and processor."""
    command = [sys.executable, __file__, "--block", block, "--worker", str(micro_batches), str(layers)]
    (run,) = run_ranks(command, RANKS, [rank], extra_env={"OMP_NUM_THREADS": "1"}, timeout=1800)
    line = next((line for line in run.output.splitlines() if line.startswith(MARK)), None)
    if line is None:
        raise SystemExit(f"M = {micro_batches}, {layers} layers: {gist(run.output)}")
    wall, processor = json.loads(line.removeprefix(MARK))
    return wall, processor


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--block", choices=("small", "decoder"), default="small")
    parser.add_argument("--micro-batches", default="4,8,16,32,64,128")
    parser.add_argument("--layers", default="2,4,8")
    parser.add_argument("--rank", type=int, default=1, help="0 .. 3")
    parser.add_argument("--worker", nargs=2, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        compile_one(args.block, *args.worker)
        return
    print("layers per stage   micro-batches   compile, s   of the processor, s")
    for layers in map(int, args.layers.split(",")):
        for micro_batches in map(int, args.micro_batches.split(",")):
            wall, processor = measure(args.block, micro_batches, layers, args.rank)
            print(f"{layers:16}   {micro_batches:13}   {wall:10.1f}   {processor:19.1f}", flush=True)


if __name__ == "__main__":
    main()
