"""`python -m health_exporter`: the command `health-exporter`, also where no script is on PATH."""

from __future__ import annotations

import sys

from health_exporter.cli import main

if __name__ == "__main__":
    sys.exit(main())
