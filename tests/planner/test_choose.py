"""The search against trying everything, its limits, and what it says."""

from dataclasses import replace

import pytest

from hyperparallel import ModelSpec, simulate
from hyperparallel.algebra.model import LayerSpec
from hyperparallel.cost.memory_bytes import Live, Peak
from hyperparallel.cost.roofline import LayerTime, costs_from_layers
from hyperparallel.errors import ScheduleError
from hyperparallel.planner import Settings
from hyperparallel.planner.candidates import Layout, bases, encodings, layouts
from hyperparallel.planner.choose import choose
from hyperparallel.planner.explain import explain
from hyperparallel.planner.rows import Job, make_row, text_only


def job_of(encoder=3.0, frozen=True, gradient=0.0, layers=(4, 8), first="vision", batch=16, text=("vision",)):
    """A model whose backbone layers take 1 + 1 + 1 for the whole batch, whose encoder takes `encoder` times that.

    A rank holds its layers, and what its forwards keep.
    """
    counts = {first: layers[0], "llm": layers[1]}
    names = [part for part, count in counts.items() for _ in range(count)]
    trainable = [not (frozen and part == first) for part in names]
    weights = [encoder if part == first else 1.0 for part in names]

    def spec(layout):
        triples = zip(names, trainable, weights, strict=True)
        return ModelSpec(tuple(LayerSpec(part, trains, 3.0 * weight) for part, trains, weight in triples))

    def costs(plan, layout):
        share = batch / layout.replicas / layout.micro_batches
        times = [LayerTime(share * weight, share * weight, share * weight) for weight in weights]
        return costs_from_layers(plan, [times] * plan.micro_batches)

    def peaks(plan, layout):
        kept = simulate(plan, costs(plan, layout)).peak_live
        held = [0] * plan.ranks
        for stage, (low, high) in enumerate(plan.placement.slabs):
            held[stage % plan.ranks] += 10 * (high - low)
        return [Peak(own + live, None, Live(own, activations=live)) for own, live in zip(held, kept, strict=True)]

    return Job(tuple(counts), set(text), layers, spec, costs, peaks, [gradient] * len(names), (0.0, 1.0))


def everything(job, tried, skeletons):
    """Plan every line by the list engine."""
    return [
        make_row(job, layout, base, encoding, Settings(engine="list"))
        for layout in tried
        for base in bases(layout, job.parts, job.layers, skeletons)
        for encoding in encodings(base)
    ]


@pytest.mark.parametrize(("frozen", "gradient"), [(True, 0.0), (False, 4.0)])
def test_nothing_faster_was_left_out(frozen, gradient):
    job, tried, skeletons = job_of(frozen=frozen, gradient=gradient), layouts(4, 8), ("1f1b", "zb")
    found = choose(job, tried, skeletons=skeletons, work_limit=0)
    rows = everything(job, tried, skeletons)
    for transposed, family in ((False, found.inline), (True, found.transposed)):
        times = [row.step_time for row in rows if bool(row.base.transposed) == transposed]
        assert min(times) <= family[0].step_time * (1 + 1e-9)
        assert family[0].step_time <= min(times) * 1.01
    assert found.tried < len(rows)


def test_rows_are_sorted_and_differ_in_layout_or_backbone():
    found = choose(job_of(), layouts(4, 16), work_limit=0)
    times = [row.step_time for row in found.rows]
    assert times == sorted(times) and len(times) > 10
    for family in (found.inline, found.transposed):
        assert len({(row.layout, row.base.kind) for row in family}) == len(family)


def test_transposing_pays_for_a_heavy_frozen_encoder():
    job = job_of(encoder=3.0, layers=(1, 4))  # one layer, which slabs cannot share
    found = choose(job, layouts(4, 8)[-1:], skeletons=["1f1b"], work_limit=0)
    best, inline = found.rows[0], found.inline[0]
    assert best.base.transposed and best.step_time < inline.step_time
    said = explain(job, found)
    assert said.startswith("transposing pays: it takes ")
    assert f"{100 * (inline.step_time / best.step_time - 1):.2g} % slower" in said


@pytest.mark.parametrize("layout", [(2, 1, 1, 4), (2, 2, 1, 4)])
def test_filled_is_what_the_backbone_idles_less(layout):
    job = job_of()
    found = choose(job, [Layout(*layout)], skeletons=["1f1b"], work_limit=0)
    row = found.transposed[0]
    alone = text_only(job, row.layout, row.base).timeline
    filled = sum(alone.bubble) - sum(row.timeline.bubble)
    assert f"fills {filled:.3g} of the {sum(alone.bubble):.3g} ms" in explain(job, found).replace(",", "")


def test_inline_wins_where_trained_copies_are_summed():
    free = job_of(frozen=False, layers=(1, 8))
    dear = job_of(frozen=False, layers=(1, 8), gradient=100.0)
    tried = [one for one in layouts(2, 8) if one.ranks == 2]
    assert choose(free, tried, work_limit=0).rows[0].base.transposed
    found = choose(dear, tried, work_limit=0)
    assert not found.rows[0].base.transposed
    assert found.transposed[0].reduce == pytest.approx(100.0) and found.inline[0].reduce == 0.0
    said = explain(dear, found)
    assert said.startswith("transposing does not pay: ") and "gradients are summed in 100 ms against 0 ms" in said


def test_trainable_text_layers_are_found_out():
    job = job_of(encoder=1.0, frozen=False, first="text", gradient=20.0, text=())
    found = choose(job, layouts(2, 8)[-1:], work_limit=0)
    assert not found.rows[0].base.transposed
    assert explain(job, found).startswith("transposing does not pay")
    assert found.text_only == pytest.approx(found.inline[0].step_time)


def test_a_tiny_encoder_hardly_pays():
    job = job_of(encoder=1e-4)
    said = explain(job, choose(job, layouts(2, 8)[-1:], work_limit=0))
    assert "pays: it" not in said and "0.0 % of the computing" in said


def test_the_limit_excludes_the_fastest():
    job, tried = job_of(layers=(1, 4)), layouts(4, 8)[-1:]
    free = choose(job, tried, work_limit=0)
    limit = free.rows[0].bytes - 1
    found = choose(job, tried, memory_limit=limit, work_limit=0)
    assert found.excluded and all(row.bytes <= limit for row in found.rows)
    assert found.rows[0].step_time > free.rows[0].step_time


def test_a_limit_that_nothing_keeps_names_one_that_works():
    job, tried = job_of(), layouts(4, 8)
    with pytest.raises(ScheduleError, match="the smallest that was found needs") as caught:
        choose(job, tried, memory_limit=5, work_limit=0)
    smallest = int(str(caught.value).partition("found needs ")[2].partition(" ")[0].replace(",", ""))
    assert min(row.bytes for row in choose(job, tried, memory_limit=smallest, work_limit=0).rows) == smallest
    assert smallest == min(row.bytes for row in everything(job, tried, ("1f1b", "interleaved", "zb", "wave")))


def test_unknown_bytes_are_no_reason_to_exclude():
    job = replace(job_of(), peaks=lambda plan, layout: None)
    found = choose(job, layouts(2, 8), memory_limit=1, work_limit=0)
    assert found.rows and not found.excluded and found.rows[0].bytes is None


def test_text_only_is_the_backbone_alone():
    job, tried = job_of(), layouts(2, 8)
    alone = job_of(layers=(4, 8), encoder=0.0)
    found = choose(job, tried, skeletons=["1f1b"], work_limit=0)
    times = [row.step_time for row in choose(alone, tried, skeletons=["1f1b"], work_limit=0).rows]
    assert found.text_only == pytest.approx(min(times))


def test_other_engines_never_make_it_slower():
    job, tried = job_of(frozen=False), layouts(4, 16)[-1:]
    quick = choose(job, tried, skeletons=["1f1b"], work_limit=0)
    better = choose(job, tried, skeletons=["1f1b"], work_limit=0.2)
    assert better.transposed[0].step_time <= quick.transposed[0].step_time
