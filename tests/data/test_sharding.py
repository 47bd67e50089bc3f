"""What each rank of a plan reads: the pixels of the micro-batches that it encodes, the texts where they are needed."""

from collections import Counter

import pytest
from files_case import SIZE, line, make, save

from hyperparallel.algebra import derive
from hyperparallel.algebra.program import F, micro_batch
from hyperparallel.cells.layer import model_spec
from hyperparallel.data import StepFeed
from hyperparallel.models import mllm
from hyperparallel.models.config import MllmConfig

STEPS, PER_STEP = 3, 16
MODEL = {
    "image_token": 3,
    "vision": {"image_size": SIZE, "channels": 3, "patch_size": 2, "width": 16, "depth": 2, "heads": 2, "ffn": 32},
    "llm": {"vocab_size": 16, "width": 24, "depth": 4, "heads": 4, "kv_heads": 2, "ffn": 32, "max_length": 64},
}


def requests_of(plan, layers):
    """List what every rank reads, as the runners do."""
    found = []
    for program in plan.programs:
        own = {}
        for action in program:
            if action.kind == F:
                first, last = plan.placement.slabs[action.stage]
                columns = [column for layer in layers[first:last] for column in layer.columns]
                if columns:
                    own.setdefault(action.stage, (set(), dict.fromkeys(columns)))[0].add(micro_batch(action.mb))
        found.append({stage: (sorted(mbs), list(columns)) for stage, (mbs, columns) in own.items()})
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As many pictures as the steps have, each in one line; every fourth line is text only."""
    folder = tmp_path_factory.mktemp("files")
    count = STEPS * PER_STEP
    names = [f"{number}.{'png' if number % 3 else 'jpg'}" for number in range(2 * count)]
    for name in names:
        save(folder / name, size=(12, 9))
    lines = [line(*names[2 * n : 2 * n + 2]) if n % 4 else line() for n in range(count)]
    make(folder, lines)
    return folder


@pytest.fixture
def decoded(monkeypatch):
    """Write down which files are read as pictures."""
    from hyperparallel.data import files

    names, read = [], files.read_image
    monkeypatch.setattr(files, "read_image", lambda path, name, rule: names.append(name) or read(path, name, rule))
    return names


def images_of(source, indices):
    return Counter(name for index in indices for name in source._text(source._line(index))[0].images)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("line", ["transpose(vision) >> 1f1b(llm)", "1f1b(vision+llm)"])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_rank_decodes_what_it_encodes_and_all_together_everything_once(folder, decoded, line, replicas, on_error):
    layers = mllm(MllmConfig(**MODEL))
    plan = derive(line, model_spec(layers), 4, PER_STEP // (2 * replicas))
    together, texts = Counter(), []
    for replica in range(replicas):
        for requests in requests_of(plan, layers):
            source = make(folder, shuffle=True, on_error=on_error)
            feed = StepFeed(source, PER_STEP, plan.micro_batches, replicas, replica)
            encoded = {m for mbs, columns in requests.values() if "pixel_values" in columns for m in mbs}
            for _ in feed.stream(requests, 0, STEPS):
                pass
            wanted = [index for step in range(STEPS) for m in encoded for index in feed.indices(step, m)]
            assert Counter(decoded) == images_of(source, wanted)
            together += Counter(decoded)
            decoded.clear()
            texts.append(any({"input_ids", "labels"} & set(columns) for _, columns in requests.values()))
    everything = images_of(source, range(STEPS * PER_STEP))
    assert together == everything and set(everything.values()) == {1} and len(everything) == 72
    assert not all(texts) and any(texts)


def test_the_stream_is_the_same_for_every_layout(folder):
    def read(ranks, replicas):
        layers = mllm(MllmConfig(**MODEL))
        plan = derive("transpose(vision) >> 1f1b(llm)", model_spec(layers), ranks, 8 // replicas)
        pixels = {}
        for replica in range(replicas):
            for requests in requests_of(plan, layers):
                feed = StepFeed(make(folder, shuffle=True), PER_STEP, 8 // replicas, replicas, replica)
                for step, data in enumerate(feed.stream(requests, 0, STEPS)):
                    for by_micro_batch in data.values():
                        for m, columns in by_micro_batch.items():
                            if "pixel_values" in columns:
                                pixels[step, replica * (8 // replicas) + m] = columns["pixel_values"].tobytes()
        return pixels

    alone = read(1, 1)
    assert len(alone) == STEPS * 8
    assert read(4, 1) == read(2, 2) == read(1, 4) == alone
