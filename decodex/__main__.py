"""`python -m decodex` is the command `decodex`."""

from __future__ import annotations

import sys

from decodex.cli import main

sys.exit(main(sys.argv[1:]))
