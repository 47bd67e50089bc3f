"""One file per command of the command line, each with `add_arguments(parser)` and `run(args) -> exit code`."""
