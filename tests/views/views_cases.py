"""Schedule lines of every shape, and the way from a line to its timeline."""

from hyperparallel import derive, parse, simulate, validate
from hyperparallel.cost import costs_from_parts, model_from_costs, parse_part_costs

INLINE, TRANSPOSED, TEXT = "1f1b(vision+llm)", "transpose(vision) >> 1f1b(llm)", "1f1b(llm)"
BOTH_ENDS = "transpose(vision) >> 1f1b(llm) >> transpose(gen)"
MIDDLE = "1f1b(vision) >> transpose(gen) >> 1f1b(llm)"
ALL = [INLINE, TRANSPOSED, TEXT, BOTH_ENDS, MIDDLE, "gpipe(vision+llm)", "1f1b(llm)*2", "wave(llm)", "zb(llm)"]
ALL += ["zb(llm, fold=v)", "transpose(vision) >> zb(llm, fold=v)", "transpose(vision) >> 1f1b(llm)*3"]


def planned(line, ranks, micro_batches, cost, message=0.0):
    """Return plan, costs and timeline."""
    schedule, parts = parse(line), parse_part_costs(cost)
    plan = validate(derive(schedule, model_from_costs(schedule, parts, ranks), ranks, micro_batches))
    costs = costs_from_parts(plan, parts, message)
    return plan, costs, simulate(plan, costs)
