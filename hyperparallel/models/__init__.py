"""A small multimodal LLM as a layer list: ViT, merger, decoder."""

from hyperparallel.models.config import DecoderConfig, MllmConfig, VisionConfig
from hyperparallel.models.mllm import mllm

__all__ = ["DecoderConfig", "MllmConfig", "VisionConfig", "mllm"]
