"""Run a job without our block in one process: MindFormers' own wrapper over the whole model, to compare with.

python plain_job.py CONFIG.yaml
"""

import sys

from mindformers.trainer.causal_language_modeling import CausalLanguageModelingTrainer
from mindformers.wrapper import MFTrainOneStepCell
from mindspore import Tensor

from hyperparallel.cells.layer import build_layer
from mindformers_patch.__main__ import main
from mindformers_patch.mllm import mllm_layers

create = CausalLanguageModelingTrainer.create_network


def no_overflow(self, status, gradients):
    """Stand in for an operator that asks the device, which a CPU has not; nothing overflows in float32 here."""
    return Tensor(False)


def create_equal(self, default_args=None):
    """Start from the weights that the graph route draws by seed and name, where MindFormers draws by seed alone."""
    network = create(self, default_args)
    own = {parameter.name: parameter for parameter in network.get_parameters()}
    for layer in mllm_layers(network.config, network.transformer_config, eager=True):
        for parameter in build_layer(layer, self.config.seed).get_parameters():
            if parameter.name in own:  # with tied words, the head's copy is not
                own.pop(parameter.name).set_data(parameter)
    assert not own, f"nothing to start {sorted(own)} from"
    return network


MFTrainOneStepCell.get_overflow_status = no_overflow
CausalLanguageModelingTrainer.create_network = create_equal

if __name__ == "__main__":
    sys.exit(main(["--config", sys.argv[1]]))
