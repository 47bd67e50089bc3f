"""Make our classes known to MindFormers by name; nothing uses them until a configuration names them."""

from mindformers_patch.data import MultimodalDataLoader
from mindformers_patch.mllm import (
    DeepseekV3MllmConfig,
    DeepseekV3MllmForCausalLM,
    Qwen3MllmConfig,
    Qwen3MllmForCausalLM,
)
from mindformers_patch.rank_trainer import RankTrainer
from mindformers_patch.three_phase_trainer import ThreePhaseTrainer

__all__ = [
    "DeepseekV3MllmConfig",
    "DeepseekV3MllmForCausalLM",
    "MultimodalDataLoader",
    "Qwen3MllmConfig",
    "Qwen3MllmForCausalLM",
    "RankTrainer",
    "ThreePhaseTrainer",
]
