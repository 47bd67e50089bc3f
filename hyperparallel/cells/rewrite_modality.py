"""Which inputs of a Cell feed its encoder, where the user does not say."""

from __future__ import annotations

import ast

from mindspore import mint, nn

from hyperparallel.cells.rewrite_names import has_parameters
from hyperparallel.cells.rewrite_steps import Step, Steps
from hyperparallel.errors import ModelError

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingLookup, mint.nn.Embedding)


def depends(steps: Steps) -> dict[str, frozenset[str]]:
    """Map every value to the inputs of the Cell that it depends on."""
    of = {name: frozenset([name]) for name in steps.inputs}
    for step in steps.steps:
        inputs = frozenset().union(*(of[name] for name in step.reads))
        of.update(dict.fromkeys(step.targets, inputs))
    return of


def find_modality(steps: Steps) -> list[str]:
    """Find the inputs that feed the encoder.

    Text is every input that goes directly into an embedding table (`nn.Embedding`, or `ops.gather` and `ops.embedding`
    of a parameter). The encoder's inputs are those that reach a sub-Cell with parameters, other than such a table,
    before they meet text.

    Raises:
        ModelError: no input is surely text, or none reaches an encoder; the user must name them.
    """
    of = depends(steps)
    text = frozenset().union(*(_looked_up(steps, step) for step in steps.steps))
    found = set()
    for step in steps.steps:
        inputs = of[step.targets[0]]
        if any(has_parameters(ref.value) for ref in step.cells) and not _looked_up(steps, step):
            found |= inputs if not inputs & text else set()
    names = ", ".join(steps.inputs)
    if not text:
        raise ModelError(
            f"{type(steps.cell).__name__}: none of the inputs ({names}) goes directly into nn.Embedding, so it is not "
            "clear which feed the encoder; name them: modality=('pixel_values',)"
        )
    if not found:
        raise _mixed(steps, of, text)
    return [name for name in steps.inputs if name in found]


def _mixed(steps: Steps, of: dict[str, frozenset[str]], text: frozenset[str]) -> ModelError:
    """Make the error for a Cell whose every sub-Cell sees text; points to the first that mixes."""
    for step in steps.steps:
        inputs = of[step.targets[0]]
        if inputs & text and inputs - text and any(has_parameters(ref.value) for ref in step.cells):
            first = _first_mixed(steps, of, text, step)
            return mixed(first, sorted(of[first.targets[0]] - text), sorted(of[first.targets[0]] & text))
    return steps.frame.refuse(
        steps.frame.code, f"no sub-Cell reads inputs other than text ({', '.join(sorted(text))}); there is no encoder"
    )


def _first_mixed(steps: Steps, of: dict[str, frozenset[str]], text: frozenset[str], step: Step) -> Step:
    """Return the first step on the way to this one that has both text and other inputs."""
    needed = set(step.reads)
    for one in reversed(steps.steps[: steps.steps.index(step)]):
        inputs = of[one.targets[0]]
        if needed & set(one.targets) and inputs & text and inputs - text:
            needed |= one.reads
            step = one
    return step


def mixed(step: Step, modality: list[str], others: list[str]) -> ModelError:
    """Make the error for an encoder that does not stand alone."""
    return step.frame.refuse(
        step.node,
        f"it depends on {', '.join(modality)} and on {', '.join(others)} too, so it cannot run before its micro-batch "
        "is due; an encoder depends on no other input",
    )


def _looked_up(steps: Steps, step: Step) -> frozenset[str]:
    """Return the inputs that this step looks up in an embedding table."""
    names = {one.id for one in ast.walk(step.code[-1]) if isinstance(one, ast.Name)} & set(steps.inputs)
    if any(isinstance(ref.value, _EMBEDDINGS) for ref in step.cells):
        return frozenset(names)
    call = next((one for one in ast.walk(step.code[-1]) if isinstance(one, ast.Call)), None)
    function = getattr(call, "func", None)
    if isinstance(function, ast.Attribute) and function.attr in ("gather", "embedding") and step.held:
        return frozenset(names)
    return frozenset()
