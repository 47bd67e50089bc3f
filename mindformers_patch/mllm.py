"""Multimodal models registered with MindFormers: our vision encoder and projector feed a stock GPT model.

In a YAML: `model_type: qwen3_mllm`, `architectures: ["Qwen3MllmForCausalLM"]`, the keys of the text model as they were,
and three of ours: `vision` (sizes of the encoder), `image_token_id`, `freeze` (patterns of parameter names).

Shapes: B texts, S tokens, I images of a text, Q tokens of an image, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import mindspore as ms
from mindformers.models.deepseek3.configuration_deepseek_v3 import DeepseekV3Config
from mindformers.models.deepseek3.utils import DeepseekV3PreTrainedModel
from mindformers.models.qwen3.configuration_qwen3 import Qwen3Config
from mindformers.models.qwen3.utils import Qwen3PreTrainedModel
from mindformers.parallel_core.training_graph.base_models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from mindformers.parallel_core.training_graph.base_models.gpt.gpt_model import GPTModel
from mindformers.parallel_core.training_graph.transformer.transformer_block import TransformerBlockSubmodules
from mindformers.parallel_core.transformer_config import TransformerConfig
from mindformers.parallel_core.utils.model_mixin import TrainModelMixin
from mindformers.parallel_core.utils.spec_utils import ModuleSpec
from mindformers.tools.register import MindFormerModuleType, MindFormerRegister
from mindspore import nn

from hyperparallel.cells.layer import Layer
from hyperparallel.cells.tensor_parallel import WHOLE, TensorParallel
from hyperparallel.errors import ConfigError
from hyperparallel.models.config import VisionConfig
from mindformers_patch.backbone import Angles, backbone, look_up, put_images
from mindformers_patch.local_modules import local_spec, plain
from mindformers_patch.named_layer import freeze
from mindformers_patch.vision import vision

OWN_KEYS = ("vision", "image_token_id", "freeze")
"""Keys of `model.model_config` that are ours."""


class _MllmConfig:
    """Keep our keys apart from those that MindFormers converts."""

    def __init__(self, vision: dict | None = None, image_token_id: int | None = None, freeze=(), **kwargs) -> None:
        self.vision = dict(vision) if vision else None
        self.image_token_id = image_token_id
        self.freeze = [freeze] if isinstance(freeze, str) else list(freeze or ())
        super().__init__(**kwargs)

    def convert_to_transformer_config(self, is_mla_model: bool = False) -> TransformerConfig:
        """Convert the keys of the text model."""
        values = {key: value for key, value in vars(self).items() if key not in OWN_KEYS}
        text = object.__new__(self.text_class)
        vars(text).update(values)
        return text.convert_to_transformer_config(is_mla_model)


@MindFormerRegister.register(MindFormerModuleType.CONFIG, legacy=False, search_names="qwen3_mllm")
class Qwen3MllmConfig(_MllmConfig, Qwen3Config):
    """Configuration of a Qwen3 with images.

    Args:
        vision: sizes of the encoder, as in `hyperparallel.models.config.VisionConfig`.
        image_token_id: token id of a placeholder, one for each token of an image.
        freeze: patterns of the names of parameters that are not trained.
        kwargs: as Qwen3Config.
    """

    model_type = "qwen3_mllm"
    text_class = Qwen3Config


@MindFormerRegister.register(MindFormerModuleType.CONFIG, legacy=False, search_names="deepseek_v3_mllm")
class DeepseekV3MllmConfig(_MllmConfig, DeepseekV3Config):
    """Configuration of a DeepSeek-V3 with images; see `Qwen3MllmConfig`."""

    model_type = "deepseek_v3_mllm"
    text_class = DeepseekV3Config


def transformer_config(config: _MllmConfig) -> TransformerConfig:
    """Convert a model's configuration to that of MindFormers' layers."""
    return config.convert_to_transformer_config(is_mla_model=isinstance(config, DeepseekV3Config))


def layer_specs(config: _MllmConfig, text: TransformerConfig, eager: bool) -> list[ModuleSpec]:
    """Specify each decoder layer, as MindFormers' own models do.

    Args:
        config: the model's configuration.
        text: what `transformer_config` made of it.
        eager: unfused norms.
    """
    if isinstance(config, DeepseekV3Config) and text.num_moe_experts:
        return get_gpt_decoder_block_spec(text).layer_specs
    latent = isinstance(config, DeepseekV3Config)
    spec = get_gpt_layer_local_spec(
        qk_layernorm=text.qk_layernorm if latent else True,
        multi_latent_attention=latent,
        mla_qkv_concat=text.mla_qkv_concat if latent else True,
        use_contiguous_weight_layout_attention=text.use_contiguous_weight_layout_attention,
        use_interleaved_weight_layout_mlp=text.use_interleaved_weight_layout_mlp,
        fused_norm=text.fused_norm and not eager,
    )
    return [spec] * text.num_layers


def vision_config(config: _MllmConfig) -> VisionConfig | None:
    """Return the encoder's sizes, or None for a model without images.

    Raises:
        ConfigError: they do not fit.
    """
    if config.vision is None:
        return None
    if config.image_token_id is None or not 0 <= config.image_token_id < config.vocab_size:
        raise ConfigError(
            f"model_config.image_token_id is {config.image_token_id}; a model with `vision` needs the token id that "
            f"stands for a token of an image, 0 .. {config.vocab_size - 1}"
        )
    try:
        return VisionConfig(**config.vision)
    except ValueError as error:
        raise ConfigError(f"model_config.vision: {error}") from None


def mllm_layers(
    config: _MllmConfig, text: TransformerConfig, *, parallel: TensorParallel = WHOLE, eager: bool = False
) -> list[Layer]:
    """List the layers of the whole model, with MindFormers' parameter names.

    Args:
        config: the model's configuration.
        text: what `transformer_config` made of it.
        parallel: this worker's place among the T workers of its stage.
        eager: use operators that a CPU has.

    Raises:
        ConfigError: sizes or frozen names do not fit.

    Returns:
        Layers of the parts `vision` (if there is one) and `llm`.
    """
    sizes = vision_config(config)
    encoder = vision(sizes, text.hidden_size, text.compute_dtype, parallel) if sizes else []
    specs = layer_specs(config, text, eager)
    token = config.image_token_id if sizes else None
    decoder = backbone(text, specs, image_token=token, parallel=parallel, eager=eager)
    return freeze([*encoder, *decoder], config.freeze)


class MllmGPT(GPTModel):
    """MindFormers' GPT model; what it is given as `decoder_input` are image features (B I, Q, H).

    Args:
        image_token: token id of a placeholder.
        args, kwargs: as MindFormers'.
    """

    def __init__(self, image_token: int, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.image_token = image_token

    def language_model(self, input_ids, position_ids, attn_mask, decoder_input=None, **more):
        """Put the features where the placeholders are, then go on as MindFormers does."""
        text_SBH = self.embedding(input_ids, position_ids)
        mixed_SBH = put_images(text_SBH, decoder_input, input_ids, self.image_token)
        return super().language_model(input_ids, position_ids, attn_mask, decoder_input=mixed_SBH, **more)


class _Mllm:
    """The whole model on one device, or, with MindFormers' parallel modes, for its own pipeline.

    Args:
        config: the model's configuration.
    """

    gpt = MllmGPT

    def __init__(self, config: _MllmConfig) -> None:
        super().__init__(config, auto_prefix=False)
        eager = ms.get_context("device_target") == "CPU"
        text = self.transformer_config = transformer_config(config)
        sizes = vision_config(config)
        if sizes is None:
            raise ConfigError(f"{type(self).__name__} needs the section model_config.vision; see docs/mindformers.md")
        specs = layer_specs(config, text, eager)
        if eager:
            text.use_flash_attention, text.fused_norm = False, False
            specs = [local_spec(spec, WHOLE, eager) for spec in specs]
        encoder = vision(sizes, text.hidden_size, text.compute_dtype)
        # With a prefix the parameters would be renamed by position.
        self.vision = nn.CellList([_named(layer) for layer in encoder], auto_prefix=False)
        self.model = self.gpt(
            config.image_token_id,
            config=text,
            transformer_layer_spec=TransformerBlockSubmodules(specs, layer_norm=_final_norm(specs)),
            vocab_size=text.vocab_size,
            max_sequence_length=text.max_position_embeddings,
            position_embedding_type=text.position_embedding_type,
            rotary_base=text.rotary_base,
            share_embeddings_and_output_weights=config.tie_word_embeddings,
        )
        if eager:
            plain(self.model)
            self.model.embedding.word_embeddings.embedding_morph = look_up
            if self.model.rotary_pos_emb is not None:
                self.model.rotary_pos_emb = Angles(self.model.rotary_pos_emb, text.seq_length)
        for parameter in self.get_parameters():
            if any(fnmatchcase(parameter.name, pattern) for pattern in config.freeze):
                parameter.requires_grad = False

    def construct(self, input_ids, labels=None, pixel_values=None, **more):
        """Return MindFormers' losses.

        Args:
            input_ids: (B, S) int32.
            labels: (B, S) int32, already shifted.
            pixel_values: (B, I, channels, height, width) float32.
        """
        features_NQH = pixel_values
        for layer in self.vision:
            features_NQH = layer(features_NQH)
        return self.model(input_ids, labels=labels, decoder_input=features_NQH)


@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class Qwen3MllmForCausalLM(_Mllm, TrainModelMixin, Qwen3PreTrainedModel):
    """Qwen3 with images."""

    config_class = Qwen3MllmConfig


@MindFormerRegister.register(MindFormerModuleType.MODELS, legacy=False)
class DeepseekV3MllmForCausalLM(_Mllm, TrainModelMixin, DeepseekV3PreTrainedModel):
    """DeepSeek-V3 with images."""

    config_class = DeepseekV3MllmConfig


def _named(layer: Layer) -> nn.Cell:
    """Build a layer and give its parameters their global names."""
    cell = layer.build()
    for local, parameter in cell.parameters_and_names():
        parameter.name = layer.parameters[local]
    return cell


def _final_norm(specs: Sequence[ModuleSpec]):
    """The norm after the last layer is the kind that its layers have."""
    return specs[-1].submodules.input_layernorm
