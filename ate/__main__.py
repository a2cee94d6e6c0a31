"""`python -m ate`: the command line."""

import sys

from ate.cli.main import main

sys.exit(main())
