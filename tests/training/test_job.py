"""A job that fails ends as a whole, soon, and says which rank it was."""

import time
from pathlib import Path

import pytest
from training_config import processes_of

from hyperparallel.training.job import JobError, run_job

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "training_ranks.py"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "the job failed on worker_1: KeyError: 'rank 1 broke' (the whole traceback is in "),
        ("sentence", "worker_1 says: the data of rank 1 are wrong (logs: "),
        ("killed", "the job failed without a traceback; read the logs in "),
        ("before joining", "the job failed on worker_1: KeyError: 'before joining'"),
    ],
)
def test_a_rank_that_fails_ends_the_job_and_is_named(tmp_path, how, words):
    start = time.monotonic()
    with pytest.raises(JobError) as error:
        run_job([str(SCRIPT), how, str(tmp_path)], 2, tmp_path, "metrics.jsonl", pytest.fail)
    assert words in str(error.value) and str(tmp_path / "logs") in str(error.value)
    assert processes_of(tmp_path) == []
    assert time.monotonic() - start < 90
