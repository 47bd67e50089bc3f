"""Models as layers and the runners that train them. Everything that imports MindSpore starts here."""

from hyperparallel.cells.layer import Layer, model_spec
from hyperparallel.cells.optimizer import AdamW
from hyperparallel.cells.stepwise import Runner, StepResult
from hyperparallel.cells.transport import Transport

__all__ = ["AdamW", "Layer", "Runner", "StepResult", "Transport", "model_spec"]
