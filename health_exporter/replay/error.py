"""What can be wrong with a file that was given as a training log."""

from __future__ import annotations

from health_exporter.errors import HealthExporterError


class LogError(HealthExporterError, ValueError):
    """A file that cannot be read, or is no training log; the message names it and says why."""
