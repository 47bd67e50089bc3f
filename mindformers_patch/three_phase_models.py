"""The registered models once more, with an LLM that is fed with features; the route `run: three_phase` builds these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindformers.tools.register import MindFormerModuleType, MindFormerRegister

from hyperparallel.errors import ConfigError
from mindformers_patch.gpt_features import FeatureGPT
from mindformers_patch.mllm import DeepseekV3MllmForCausalLM, Qwen3MllmForCausalLM


@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class Qwen3MllmByFeatures(Qwen3MllmForCausalLM):
    """Qwen3 with images; see `FeatureGPT`."""

    gpt = FeatureGPT


@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class DeepseekV3MllmByFeatures(DeepseekV3MllmForCausalLM):
    """DeepSeek-V3 with images; see `FeatureGPT`."""

    gpt = FeatureGPT


_BY_FEATURES = {model.__base__.__name__: model.__name__ for model in (Qwen3MllmByFeatures, DeepseekV3MllmByFeatures)}


def by_features(values: Mapping[str, Any]) -> str:
    """Return the name of the model that this route builds.

    Args:
        values: what stands under `model.model_config`.

    Raises:
        ConfigError: `architectures` names none of ours.
    """
    names = values.get("architectures") or ["none"]
    name = names if isinstance(names, str) else names[0]
    if name in _BY_FEATURES.values():
        return name
    if name not in _BY_FEATURES:
        raise ConfigError(f"model_config.architectures is {name}; expected one of {', '.join(_BY_FEATURES)}")
    return _BY_FEATURES[name]
