"""Environment variables by which the starter of a job tells its ranks what they must know."""

JOB_MARK = "HYPERPARALLEL_JOB"
"""All processes of a job have it, each job with a value of its own: its starter finds them by it and ends them."""

RUN_FOLDER = "HYPERPARALLEL_RUN_FOLDER"
"""The folder of this run."""
