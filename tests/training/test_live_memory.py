"""What layers need is measured once where it is not known, and limits in bytes are kept with it."""

import json
import re
from dataclasses import replace

import pytest
from training_config import LINES, write_config

from hyperparallel.cost.memory_bytes import peak_of
from hyperparallel.cost.memory_stage import LayerBytes
from hyperparallel.errors import DryRunError, PlanError, ScheduleError
from hyperparallel.training import live_memory
from hyperparallel.training.build import build_layers, column_specs
from hyperparallel.training.config import load_config
from hyperparallel.training.memory_profile import predict, probes
from hyperparallel.training.planning import hand_over, plan_job

FILL = "schedule='transpose(vision, owner=balanced, place=fill) >> 1f1b(llm)'"
WARMUP = "schedule='transpose(vision) >> 1f1b(llm)'"
INLINE = "schedule='1f1b(vision+llm)'"
BYTES = LayerBytes(weights=4000, trained=4000, largest=2000, constants=0, saved=100_000, forward=0, backward=500)


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    """Stand in for the process that measures; lists the configurations that it was given."""
    file, seen = tmp_path / "memory.json", []

    def profile_of(path, overrides, layers, columns, given, *, dtype, shards):
        seen.append(load_config(path, overrides))
        profile = {probe.kind: BYTES for probe in probes(layers, columns, dtype)}
        given.write_text(json.dumps({kind: one._asdict() for kind, one in profile.items()}))
        return profile

    monkeypatch.setattr(live_memory, "default_file", lambda: file)
    monkeypatch.setattr(live_memory, "profile_of", profile_of)
    return seen


def config_of(tmp_path, *overrides):
    text = LINES.replace("batch_size: 8", "batch_size: 16").replace("micro_batches: 2", "micro_batches: 8")
    config = load_config(write_config(tmp_path, text), ["planner.engine=list", *overrides])
    return config, build_layers(config)


def peak(config, plan, layers):
    return max(peak_of(curve).bytes for curve in live_memory.curves(config, plan, layers))


def test_measured_once_from_the_configuration_as_it_stands(measuring, tmp_path, capsys):
    config, layers = config_of(tmp_path, FILL, "data.max_images=1", "training.lr=1e-05", "run.recompute=[1]")
    plan = plan_job(config, layers).plan
    first = live_memory.curves(config, plan, layers)
    out, said = capsys.readouterr()
    assert measuring == [config] and out == ""
    assert re.fullmatch(r"measuring the memory of \d+ kinds of layer, once: it is kept in \S+memory\.json\n", said)
    assert live_memory.curves(config, plan, layers) == first
    assert len(measuring) == 1 and capsys.readouterr() == ("", "")


@pytest.mark.parametrize("recompute", ["[]", "[1]", "all"])
@pytest.mark.parametrize("line", [WARMUP, INLINE])
def test_the_curves_peak_where_the_dry_run_predicts(measuring, tmp_path, line, recompute):
    config, layers = config_of(tmp_path, line, f"run.recompute={recompute}", "parallel.data_parallel=2")
    plan = plan_job(config, layers).plan
    stages = range(plan.placement.stages) if recompute == "all" else json.loads(recompute)
    profile, columns = live_memory.measured(config, layers), column_specs(config)
    expected = predict(plan, layers, columns, profile, replicas=2, recompute=tuple(stages))
    assert [peak_of(curve) for curve in live_memory.curves(config, plan, layers)] == expected


def test_a_rank_measures_nothing(measuring, tmp_path, monkeypatch):
    config, layers = config_of(tmp_path, WARMUP)
    plan = plan_job(config, layers).plan
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    with pytest.raises(DryRunError, match="is not in the profile"):
        live_memory.curves(config, plan, layers)
    assert measuring == []


def test_a_limit_in_bytes_is_kept_with_layers_that_were_never_measured(measuring, tmp_path):
    config, layers = config_of(tmp_path, FILL)
    free = peak(config, plan_job(config, layers).plan, layers)
    measuring.clear()
    live_memory.default_file().unlink()
    limited, _ = config_of(tmp_path, FILL, f"planner.memory_limit={free - 1} B")
    assert peak(limited, plan_job(limited, layers).plan, layers) < free
    assert len(measuring) == 1


def test_an_infeasible_limit_names_one_that_works(measuring, tmp_path):
    config, layers = config_of(tmp_path, FILL, "planner.memory_limit=1 KB")
    with pytest.raises(ScheduleError, match="stay within 1,000 bytes; the smallest that a plan was f") as error:
        plan_job(config, layers)
    smallest = int(re.search(r"found for is ([\d,]+) bytes", str(error.value))[1].replace(",", ""))
    config, _ = config_of(tmp_path, FILL, f"planner.memory_limit={smallest} B")
    assert peak(config, plan_job(config, layers).plan, layers) == smallest
    config, _ = config_of(tmp_path, FILL, f"planner.memory_limit={smallest - 1} B")
    with pytest.raises(ScheduleError, match=f"the smallest that a plan was found for is {smallest:,} bytes"):
        plan_job(config, layers)


def test_a_line_that_leaves_nothing_open_is_refused_with_what_it_takes(measuring, tmp_path):
    config, layers = config_of(tmp_path, INLINE)
    needed = peak(config, plan_job(config, layers).plan, layers)
    config, _ = config_of(tmp_path, INLINE, "planner.memory_limit=1 KB")
    with pytest.raises(ScheduleError, match=f"the smallest that a plan was found for is {needed:,} bytes"):
        plan_job(config, layers)
    config, _ = config_of(tmp_path, INLINE, f"planner.memory_limit={needed} B")
    assert plan_job(config, layers).certificate is None


def test_encodes_of_the_command_line_stand_for_the_limit_of_the_file(measuring, tmp_path):
    config, layers = config_of(tmp_path, FILL, "planner.memory_limit=1 KB")
    certificate = plan_job(config, layers, {"live_limit": 3}).certificate
    assert max(certificate.held) <= 3 and measuring == []


def assert_same(found, planned):
    bound = pytest.approx(planned.certificate.bound, rel=1e-12)  # of sums in another order
    assert found.plan == planned.plan and found.certificate == replace(planned.certificate, bound=bound)


def test_a_plan_of_a_file_is_held_to_the_limits(measuring, tmp_path, monkeypatch):
    config, layers = config_of(tmp_path, FILL)
    planned = plan_job(config, layers)
    (file,) = hand_over(planned, tmp_path)
    most, held = peak(config, planned.plan, layers), max(planned.certificate.held)
    for limit in (f"{most} B", f"{held} encodes"):
        assert_same(plan_job(config_of(tmp_path, FILL, file, f"planner.memory_limit={limit}")[0], layers), planned)
    for limit, said in ((f"{most - 1} B", f"holds {most:,} bytes"), (f"{held - 1} encodes", f"holds {held} encodes")):
        limited, _ = config_of(tmp_path, FILL, file, f"planner.memory_limit={limit}")
        with pytest.raises(PlanError, match=f"plan.json: rank . {said}"):
            plan_job(limited, layers)
    monkeypatch.setenv("MS_ROLE", "MS_WORKER")
    measuring.clear()
    assert_same(plan_job(config_of(tmp_path, FILL, file, f"planner.memory_limit={most - 1} B")[0], layers), planned)
    assert measuring == []


def test_a_plan_of_a_file_has_the_times_of_the_costs_of_now(measuring, tmp_path):
    config, layers = config_of(tmp_path, FILL)
    planned = plan_job(config, layers)
    (file,) = hand_over(planned, tmp_path)
    slower, _ = config_of(tmp_path, FILL, file, "cost.gflops=5", "cost.message_ms=0")
    faster, _ = config_of(tmp_path, FILL, file, "cost.gflops=10", "cost.message_ms=0")
    times = [plan_job(one, layers).certificate.step_time for one in (slower, faster)]
    assert times[0] == pytest.approx(2 * times[1]) and planned.certificate.step_time not in times
