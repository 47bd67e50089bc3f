"""From a rank's program to the straight-line source of one graph-mode Cell. Pure text; no MindSpore.

Two chains of tokens hold the order. Every compute waits for the compute before it; every message waits for the
message and the compute before it. A compute does not wait for a message that it does not use, so a receive that is
posted early overlaps with compute. Whatever the compiler leaves open can not make ranks wait for each other: the
messages of a rank are in the plan's order, and the plan's order passes under rendezvous.

Names in the source, of stage 4 and micro-batch 2: `a4_2_0` an input that its gate holds back, `r4_2_0` the same for a
recompute, `h4_2` output, `d4_2` gradient of the output, `u4_2` gradient of the input ("upstream"), `w4_2` weight
gradients, `acc4` their sum; `mt` is what the next message waits for. Of piece 0 of micro-batch 2: `h0_2p0`; pieces
are joined in `j4_2_0`, and their gradient `u4_2` is cut into `u4_2p0`, ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hyperparallel.algebra.placement import Placement
from hyperparallel.algebra.program import RECEIVES, SENDS, Action, B, F, I, Program, Unit, W, micro_batch
from hyperparallel.algebra.progress import counterpart
from hyperparallel.cells.graph_source import Source, StageFacts, Wire, identifier


def write_source(
    program: Program,
    placement: Placement,
    stages: Mapping[int, StageFacts],
    carries: Sequence[int],
    serial: bool = False,
    scaled: bool = False,
) -> Source:
    """Write the source of one rank's step.

    Args:
        program: the rank's actions, messages included; without backwards for a forward-only step.
        placement: gives the neighbours and gates.
        stages: facts of the rank's own stages.
        carries: number of tensors that each stage hands on, by stage index.
        serial: a compute waits for the messages before it too. Needed where stages have collectives inside (tensor
            parallelism), which must be in one order with the messages on all workers.
        scaled: the step has one more argument, a factor on the loss.

    Returns:
        The source; what it leaves for the end of the step is in `token`, `packed` and `summed`.

    Example:
        >>> from hyperparallel.algebra import ModelSpec, derive
        >>> plan = derive("1f1b(llm)", ModelSpec.of({"llm": 1}), ranks=1, micro_batches=2)
        >>> from hyperparallel.cells.graph_source import StageFacts
        >>> facts = {0: StageFacts(("x",), trains=True, has_weights=True)}
        >>> print("\\n".join(write_source(plan.programs[0], plan.placement, facts, [1]).lines))
        # 0F0
        a0_0_0 = self.gate_0F0(x_0, rates)
        h0_0 = self.stage_0(a0_0_0)
        packed = h0_0
        # 0B0
        d0_0 = self.gate_0B0(self.loss_gradient, h0_0)
        w0_0 = self.backward_0(a0_0_0, d0_0)
        acc0 = w0_0
        # 0F1
        a0_1_0 = self.gate_0F1(x_1, acc0)
        h0_1 = self.stage_0(a0_1_0)
        packed = packed + h0_1
        # 0B1
        d0_1 = self.gate_0B1(self.loss_gradient, h0_1)
        w0_1 = self.backward_0(a0_1_0, d0_1)
        acc0 = self.add(acc0, w0_1)
    """
    forwards = Counter(action.stage for action in program if action.kind == F)
    differentiated = {action.stage for action in program if action.kind in (B, I)}
    alone = {stage for stage in differentiated if forwards[stage] == 1}
    writer = _Writer(placement, stages, carries, alone, serial, scaled)
    for action in program:
        writer.add(action)
    writer.source.token = writer.tokens()
    return writer.source


def variable(column: str, unit: Unit) -> str:
    """Name the argument that brings a column of a micro-batch, or of a piece of it."""
    return f"{column}_{identifier(unit)}"


class _Writer:
    """Writes action after action; keeps which names exist."""

    def __init__(
        self,
        placement: Placement,
        stages: Mapping[int, StageFacts],
        carries: Sequence[int],
        alone: Collection[int],
        serial: bool,
        scaled: bool,
    ):
        self.placement, self.stages, self.carries = placement, stages, carries
        self.alone, self.serial = alone, serial
        self.source = Source()
        self.loss_gradient = "self.loss_gradient"
        if scaled:
            self.source.arguments.append("scale")
            self.loss_gradient = "(self.loss_gradient * scale)"
        self.ct = "rates"  # the first token must not be a constant, or its gate would vanish
        self.mt = ""

    def add(self, action: Action) -> None:
        """Write one action."""
        self._line(f"# {action}")
        if action.kind in SENDS:
            self._send(action)
        elif action.kind in RECEIVES:
            self._receive(action)
        elif action.kind == F:
            self._forward(action)
        elif action.kind == W:
            self._weight_gradient(action)
        else:
            self._backward(action)

    def tokens(self) -> str:
        """Return what a message waits for: the compute and the message before it."""
        return _tuple([self.ct, self.mt] if self.mt else [self.ct])

    def compute_token(self) -> str:
        """Return what a compute waits for."""
        return self.tokens() if self.serial else self.ct

    def _line(self, text: str) -> None:
        self.source.lines.append(text)

    def _gate(self, action: Action, value: str, token: str) -> str:
        if not self.source.gates or self.source.gates[-1] != action:
            self.source.gates.append(action)
        return f"self.gate_{identifier(action)}({value}, {token})"

    def _argument(self, column: str, mb: Unit) -> str:
        name = variable(column, mb)
        if (column, mb) not in self.source.inputs:
            self.source.inputs.append((column, mb))
            self.source.arguments.append(name)
        return name

    def _forward(self, action: Action) -> None:
        stage, _, unit = action
        mb = identifier(unit)
        before, after = self.placement.neighbours[stage, unit]
        columns = [self._argument(column, unit) for column in self.stages[stage].columns]
        carry = [self._carry("h", *node) for node in before]
        values = [*(self._joined(action, carry) if len(carry) > 1 else carry[0] if carry else ()), *columns]
        names = self._gated(action, values, "a")
        self._line(f"h{stage}_{mb} = self.stage_{stage}({', '.join(names)})")
        self.ct = f"h{stage}_{mb}"
        if stage in self.alone:
            # A forward that is called once is inlined earlier than the others, which leaves loads of weights in two
            # states and makes forwards of *other* stages run twice. This second call is merged with the first.
            self._line(f"again{stage} = self.stage_{stage}({', '.join(names)})")
            self.ct = f"(h{stage}_{mb}, again{stage})"
        if after is None:
            first = self.source.packed != "packed"
            self._line(f"packed = h{stage}_{mb}" if first else f"packed = packed + h{stage}_{mb}")
            self.source.packed = "packed"

    def _joined(self, action: Action, carries: Sequence[Sequence[str]]) -> list[str]:
        """Put the carries of all pieces one after the other, tensor by tensor."""
        names = []
        for index, tensors in enumerate(zip(*carries, strict=True)):
            names.append(f"j{action.stage}_{action.mb}_{index}")
            self._line(f"{names[-1]} = self.join({_tuple(tensors)})")
        return names

    def _held(self, stage: int, unit: Unit) -> int:
        """Count the inputs of a stage that are held back: the tensors of its carry, or the first column."""
        before = self.placement.neighbours[stage, unit][0]
        return self.carries[before[0][0]] if before else 1

    def _gated(self, action: Action, values: Sequence[str], prefix: str) -> list[str]:
        """Hold back the inputs of a stage: its carry, or the first column of the first stage."""
        stage, _, unit = action
        names = list(values)
        for index in range(self._held(stage, unit)):
            names[index] = f"{prefix}{stage}_{identifier(unit)}_{index}"
            self._line(f"{names[index]} = {self._gate(action, values[index], self.compute_token())}")
        return names

    def _backward(self, action: Action) -> None:
        stage, kind, unit = action
        mb = identifier(unit)
        facts, gates = self.stages[stage], self.placement.gates[stage]
        before, after = self.placement.neighbours[stage, unit]
        columns = [variable(column, unit) for column in facts.columns]
        held = self._held(stage, unit)
        names = [f"a{stage}_{mb}_{index}" for index in range(held)] + columns[0 if before else 1 :]
        if facts.recompute:
            names = self._gated(action, names, "r")
        gradients = [self.loss_gradient] if after is None else self._carry("u", after[0], unit)
        held_back = [self._gate(action, gradient, self.compute_token()) for gradient in gradients]
        self._line(f"d{stage}_{mb} = {_tuple(held_back)}")
        if not facts.has_weights and not gates.sends_gradient:
            return
        call = f"self.backward_{stage}({', '.join(names)}, d{stage}_{mb})"
        self._define_backward(stage, len(names))
        tokens = []
        if not gates.sends_gradient:
            self._line(f"w{stage}_{mb} = {call}")
        else:
            self._line(f"g{stage}_{mb} = {call}")
            inputs = f"g{stage}_{mb}[0]" if facts.has_weights else f"g{stage}_{mb}"
            self._line(f"u{stage}_{mb} = {inputs}[0]" if held == 1 else f"u{stage}_{mb} = {inputs}[:{held}]")
            if facts.has_weights:
                self._line(f"w{stage}_{mb} = g{stage}_{mb}[1]")
            tokens.append(f"u{stage}_{mb}")
            if len(before) > 1:
                self._cut(stage, [piece for _, piece in before], f"u{stage}_{mb}", held)
        if facts.has_weights and kind == B:
            self._accumulate(stage, f"w{stage}_{mb}")
            tokens.append(self.ct)
        elif not tokens:
            tokens.append(f"w{stage}_{mb}")
        self.ct = _tuple(tokens)

    def _cut(self, stage: int, pieces: Sequence[Unit], gradient: str, width: int) -> None:
        """Give every piece its rows of a gradient."""
        whole = [gradient] if width == 1 else [f"{gradient}[{index}]" for index in range(width)]
        for index, tensor in enumerate(whole):
            self._line(f"c{stage}_{index} = self.cut({tensor})")
        for place, piece in enumerate(pieces):
            rows = [f"c{stage}_{index}[{place}]" for index in range(width)]
            self._line(f"u{stage}_{identifier(piece)} = {_tuple(rows)}")

    def _weight_gradient(self, action: Action) -> None:
        """Add up what I has computed; held back tensor by tensor, as a gate around a tuple would be dropped."""
        gradients = f"w{action.stage}_{action.mb}"
        self._line(f"mark = self.depend({gradients}[0], {self.compute_token()})")
        self._line(f"{gradients} = self.hold(self.gate_{identifier(action)}, mark, {gradients})")
        self.source.gates.append(action)
        self._accumulate(action.stage, gradients)

    def _define_backward(self, stage: int, inputs: int) -> None:
        """Give the backward a method of its own, so that the compiler differentiates once for all micro-batches."""
        of = f"self.stage_{stage}, self.weights_{stage}" if self.stages[stage].has_weights else f"self.stage_{stage}"
        names = ", ".join([*(f"x{index}" for index in range(inputs)), "d"])
        self.source.methods[f"backward_{stage}"] = (
            f"def backward_{stage}(self, {names}):",
            f"    return self.differentiate_{stage}({of})({names})",
        )

    def _accumulate(self, stage: int, gradients: str) -> None:
        if stage in self.source.summed:
            self._line(f"acc{stage} = self.add(acc{stage}, {gradients})")
        else:
            self._line(f"acc{stage} = {gradients}")
            self.source.summed.append(stage)
        self.ct = f"acc{stage}"

    def _carry(self, letter: str, producer: int, unit: Unit) -> list[str]:
        """Name the tensors that a stage produced, here or elsewhere: `h` outputs, `u` input gradients."""
        count = self._width(letter, producer, unit)
        name = f"{letter}{producer}_{identifier(unit)}"
        return [name] if count == 1 else [f"{name}[{index}]" for index in range(count)]

    def _width(self, letter: str, producer: int, unit: Unit) -> int:
        """Count the tensors: the gradient of a stage's input has as many as the stage before it hands on."""
        if letter == "h":
            return self.carries[producer]
        before = self.placement.neighbours[producer, micro_batch(unit)][0]
        assert before, f"stage {producer} has no stage before it"
        return self.carries[before[0][0]]

    def _send(self, action: Action) -> None:
        letter = "h" if action.kind == "SEND_F" else "u"
        for index, name in enumerate(self._carry(letter, action.stage, action.mb)):
            self.source.wires.append(Wire(action, index))
            self._line(f"mt = self.wire_{identifier(action)}_{index}({self._gate(action, name, self.tokens())})")
            self.mt = "mt"

    def _receive(self, action: Action) -> None:
        letter, producer = "h" if action.kind == "RECV_F" else "u", counterpart(action, self.placement).stage
        names, mb = [], identifier(action.mb)
        for index in range(self._width(letter, producer, action.mb)):
            self.source.wires.append(Wire(action, index))
            names.append(f"{letter}{producer}_{mb}_{index}")
            wire = identifier(action)
            gate = self._gate(action, f"self.blank_{wire}_{index}", self.tokens())
            self._line(f"{names[-1]} = self.wire_{wire}_{index}({gate})")
            self._line(f"mt = {names[-1]}")
            self.mt = "mt"
        self._line(f"{letter}{producer}_{mb} = {_tuple(names)}")


def _tuple(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
