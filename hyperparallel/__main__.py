"""`python -m hyperparallel` is the command `hyperparallel`."""

import sys

from hyperparallel.cli import main

sys.exit(main())
