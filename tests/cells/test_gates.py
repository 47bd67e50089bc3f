"""Frozen parts cost nothing that they need not; what crosses the wire is carries and gradients only."""

import numpy as np
import pytest
from cells_case import CASES, INLINE, TRANSPOSE, Case, batch_of, layers_of, plan_of

pytestmark = pytest.mark.slow
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
FROZEN_ENCODER = [case for case in CASES if not case.vision]


def actions(seen, kinds):
    return [action for action in seen.facts["program"] if any(f"{kind}" in action for kind in kinds)]


def placement_of(case):
    return plan_of(case, layers_of(case)).placement


@pytest.mark.parametrize("case", FROZEN_ENCODER, ids=lambda case: case.name)
def test_a_frozen_encoder_is_not_trained_and_has_no_state(results, case):
    for seen in results[case.name]:
        for name in seen.final:
            if name.startswith("vision"):
                np.testing.assert_array_equal(seen.final[name], seen.initial[name], err_msg=name)
        for place in ("trained", "shared", "state"):
            assert not [name for name in seen.facts[place] if "vision" in name], place
        assert any("llm" in name for name in seen.facts["state"])


@pytest.mark.parametrize(
    "case", [case for case in FROZEN_ENCODER if case.schedule == TRANSPOSE], ids=lambda case: case.name
)
def test_a_frozen_transposed_encoder_has_no_backward_and_no_gradient_on_its_seam(results, case):
    encoders = range(case.ranks)
    for seen in results[case.name]:
        backward = [action for action in seen.facts["program"] if action.partition("B")[1]]
        of_encoder = [action for action in backward if int(action.split("B")[0].rstrip("SENDRCV_")) in encoders]
        assert backward and not of_encoder
        gradients = [sent for step in seen.facts["steps"] for sent in step["sends"] if "SEND_B" in sent[1]]
        # The first slab of the backbone is where gradients end.
        assert not [action for _, action, _ in gradients if action.startswith(f"{case.ranks}SEND_B")]


@pytest.mark.parametrize("case", [case for case in CASES if case.schedule == TRANSPOSE], ids=lambda case: case.name)
def test_only_a_trained_encoder_is_summed_over_all_ranks(results, case):
    everyone = list(range(case.workers))
    encoder = sum(v.size for name, v in results[case.name][0].final.items() if name.startswith("vision"))
    for seen in results[case.name]:
        for name, ranks in seen.facts["shared"].items():
            assert name.startswith("vision") is False or ranks == everyone
        for step in seen.facts["steps"]:
            elements = sum(size for ranks, size in step["sums"] if ranks == everyone)
            assert (elements >= encoder) is (case.vision and not case.freeze and case.workers > 1)


@every_case
def test_gradients_are_summed_in_one_message_per_group(results, case):
    """Besides losses and norm, each group of holders has one sum with all its elements."""
    for seen in results[case.name]:
        by_group: dict[tuple[int, ...], int] = {}
        for name, ranks in seen.facts["shared"].items():
            size = seen.final[name if name in seen.final else "llm.head.weight"].size
            by_group[tuple(ranks)] = by_group.get(tuple(ranks), 0) + size
        for step in seen.facts["steps"]:
            rest = list(step["sums"])
            for ranks, size in by_group.items():
                if len(ranks) > 1:
                    rest.remove([list(ranks), size])
            *losses, norm = rest
            of_pass = case.data_parallel * case.micro_batches // case.passes
            assert losses == [[list(range(case.workers)), of_pass * 4]] * case.passes
            assert norm == [list(range(case.workers)), 1]


def test_a_frozen_backbone_passes_the_gradient_and_keeps_its_weights(results):
    case = Case(TRANSPOSE, 2, llm=False)
    for seen in results[case.name]:
        assert actions(seen, ["2B", "3B"]) and actions(seen, ["0B", "1B"])
        assert all(name.startswith("vision") for name in seen.facts["shared"])
        assert all("vision" in name for name in seen.facts["state"]) and seen.facts["state"]
        for name in seen.final:
            assert np.array_equal(seen.final[name], seen.initial[name]) is name.startswith("llm"), name


@every_case
def test_only_carries_and_gradients_cross_the_wire(results, case):
    rows = {len(mb["labels"]) for replica in range(case.data_parallel) for mb in batch_of(0, case, replica)}
    for seen in results[case.name]:
        for step in seen.facts["steps"]:
            for _, _, arrays in step["sends"]:
                ((shape, kind),) = arrays
                # Features of images (N, tokens, width), of patches inside the encoder, or of text (B, T, width).
                assert len(shape) == 3 and kind == np.dtype(case.dtype).str
                assert shape[1:] in ([4, 24], [16, 16]) or (shape[0] in rows and shape[2] == 24)


@every_case
def test_messages_are_those_of_the_program(results, case):
    for seen in results[case.name]:
        planned = [action for action in seen.facts["program"] if "SEND" in action]
        for step in seen.facts["steps"]:
            assert [action for _, action, _ in step["sends"]] == planned * case.passes


def first_nodes(placement, mb):
    """What runs first of a micro-batch: its first stage, or all its pieces."""
    return placement.nodes(0, mb) if placement.split > 1 else [(placement.path(mb)[0], mb)]


@every_case
def test_pixels_are_read_where_they_are_encoded_and_labels_where_the_loss_is(results, case):
    placement = placement_of(case)
    mbs = range(case.micro_batches // case.passes)
    losses = [placement.rank_of(placement.path(mb)[-1]) for mb in mbs]
    encodes = [{placement.rank_of(stage) for stage, _ in first_nodes(placement, mb)} for mb in mbs]
    for number, seen in enumerate(results[case.name]):
        rank = number // case.data_parallel
        read = {}
        for own, columns in seen.facts["requests"].values():
            for column in columns:
                read.setdefault(column, []).extend(own)
        assert read.get("pixel_values", []) == [mb for mb in mbs if rank in encodes[mb]]
        assert read.get("labels", []) == [mb for mb in mbs if losses[mb] == rank]


def test_the_first_rank_reads_no_labels_and_the_last_no_pixels_when_inline(results):
    first, *_, last = (seen.facts["requests"] for seen in results[Case(INLINE, 4).name])
    assert first == {"0": [[0, 1, 2, 3], ["pixel_values", "input_ids"]]}
    assert last == {"3": [[0, 1, 2, 3], ["labels"]]}
