"""Read a rank's program back out of its compiled graph, from dependencies alone.

The printed order of a graph is one of many. Here the order is rebuilt from what must precede what: gates put the
computes in a chain, messages are in a chain of their own, and each message says how many computes must be over.
Only if that fixes the whole order does a sequence come out, and the test is that it equals the plan's program.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from hyperparallel.algebra.program import COMPUTE, Action, F, parse_action
from hyperparallel.dryrun.ir_order import P2P, Event, compute_only, marked
from hyperparallel.errors import DryRunError

PRODUCTS = frozenset({"MatMul", "BatchMatMul"})
"""Operators that are most of a slab's work, by which forwards and backwards are told apart."""


class Step(NamedTuple):
    """What a graph does, action by action.

    Args:
        actions: in the order that the dependencies force.
        operators: action -> its operators by name, forward and backward ones apart: ("MatMul", False) -> 5.
        twice: action -> how many forward products stand in it more than once.
    """

    actions: tuple[Action, ...]
    operators: dict[Action, Counter]
    twice: dict[Action, int]


def read_step(events: Sequence[Event]) -> Step:
    """Read the actions of a graph that `cells/graph.py` made.

    Args:
        events: from `read_order`, one rank's.

    Raises:
        DryRunError: two actions whose order nothing guarantees, or an operator in an action of another stage.

    Returns:
        The actions and their operators. What is after the last action (sums, update) is not in it.
    """
    marks = marked(events)
    gates: dict[Action, int] = defaultdict(int)  # action -> bits of its gates
    before: dict[Action, int] = defaultdict(int)  # action -> bits of what must precede them
    for bit, event in enumerate(marks):
        if event.action is not None:
            action = parse_action(event.action)
            gates[action] |= 1 << bit
            before[action] |= event.before
    messages = {bit: _message(event, gates, events) for bit, event in enumerate(marks) if event.op in P2P}
    computes = _chain([action for action in gates if action.kind in COMPUTE], gates, before)
    wires: dict[Action, int] = defaultdict(int)
    for bit, action in messages.items():
        wires[action] |= 1 << bit
    sent = _chain(list(wires), wires, before)
    position = {action: _over(computes, gates, before[action]) for action in sent}
    actions: list[Action] = []
    waiting = list(sent)
    for done in range(len(computes) + 1):
        while waiting and position[waiting[0]] == done:
            actions.append(waiting.pop(0))
        if done < len(computes):
            actions.append(computes[done])
    if waiting:
        raise DryRunError(f"{waiting[0]} waits for a later compute than the message after it")
    return Step(tuple(actions), *_operators(events, computes, gates))


def compare(step: Step, program: Sequence[Action]) -> list[str]:
    """List the differences between a graph and a plan's program for the same rank.

    Returns:
        Nothing if they are equal; else the first place where they part, or what is missing.
    """
    for index, (got, wanted) in enumerate(zip(step.actions, program, strict=False)):
        if got != wanted:
            return [f"action {index} of the graph is {got}; the plan has {wanted} there"]
    if len(step.actions) != len(program):
        return [f"the graph has {len(step.actions)} actions; the plan has {len(program)}"]
    return []


def repeated_forwards(step: Step) -> list[Action]:
    """List the actions in which a forward runs again: backwards that recompute, forwards that were not merged."""
    return [
        action
        for action, operators in step.operators.items()
        if step.twice[action] or (action.kind != F and any(op in PRODUCTS and not back for op, back in operators))
    ]


def _message(event: Event, gates: dict[Action, int], events: Sequence[Event]) -> Action:
    """Name a Send or Receive by the gate that it reads from."""
    found = [events[index].action for index in event.inputs if events[index].action is not None]
    if len(found) != 1:
        raise DryRunError(f"{event} has no gate in front of it; expected exactly one")
    action = parse_action(found[0])
    if action.kind.startswith("SEND") != (event.op == "Send"):
        raise DryRunError(f"{event} stands where the plan has {action}")
    return action


def _chain(actions: Sequence[Action], own: dict[Action, int], before: dict[Action, int]) -> list[Action]:
    """Sort actions by how many of them must precede each; refuse when that leaves anything open."""
    everything = 0
    for action in actions:
        everything |= own[action]
    order = sorted(actions, key=lambda action: (before[action] & everything).bit_count())
    for left, right in zip(order, order[1:], strict=False):
        if own[left] & ~before[right]:
            raise DryRunError(f"nothing makes {right} wait for {left}")
    return order


def _over(computes: Sequence[Action], gates: dict[Action, int], before: int) -> int:
    """Count the computes that must have begun before something."""
    return sum(bool(gates[action] & before) for action in computes)


def _operators(
    events: Sequence[Event], computes: Sequence[Action], gates: dict[Action, int]
) -> tuple[dict[Action, Counter], dict[Action, int]]:
    """Assign each operator of a slab to the last compute whose gate must precede it."""
    found: dict[Action, Counter] = {action: Counter() for action in computes}
    origins: dict[Action, Counter] = {action: Counter() for action in computes}
    for event in compute_only(events):
        if "/stage_" not in event.scope:
            continue
        owner = None
        for action in reversed(computes):
            if gates[action] & event.before:
                owner = action
                break
        if owner is None:
            continue  # depends on weights and constants only
        # Only the scopes of forward products with weights tell the stage: the compiler shares one graph among equal
        # functions and gradients, and names all of its copies after the first.
        stage = int(event.scope.split("/stage_", 1)[1].split("-", 1)[0])
        if event.op in PRODUCTS and event.reads and not event.backward and stage != owner.stage:
            raise DryRunError(f"{event} of stage {stage} runs in {owner}")
        found[owner][event.op, event.backward] += 1
        if event.op in PRODUCTS and not event.backward and event.reads:
            # Copies of one product share its number and its weight; either alone may be shared by two layers.
            origins[owner][event.attrs.get("unique_id"), event.reads] += 1
    twice = {action: sum(number - 1 for number in counts.values()) for action, counts in origins.items()}
    return found, twice
