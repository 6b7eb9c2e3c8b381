"""`python -m cq_engine` is `cq`."""

from __future__ import annotations

import sys

from cq_engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
