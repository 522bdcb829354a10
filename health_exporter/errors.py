"""
HealthExporterError
  + SettingsError   (also a ValueError)  bad configuration, found at start
  + EndpointError   (also an OSError)    no port could be bound
  + StateError      (also a ValueError)  saved state that cannot be used
  + ReceiptError    (also a ValueError)  a receipt folder or file that cannot be read
  + AssetError                           shipped files that cannot be found or written (`asset`)
  + StackError                           a server that is missing or does not start (`demo.stack`)

A bad argument of one call is a plain `TypeError` or `ValueError` that names the argument and the
value.
"""

from __future__ import annotations

from collections.abc import Sequence


class HealthExporterError(Exception):
    """Base of every error that this package raises on purpose."""


class SettingsError(HealthExporterError, ValueError):
    """One or more settings are wrong; `problems` lists all of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = list(problems)


class EndpointError(HealthExporterError, OSError):
    """The endpoint could not be bound; the message names the address and the port."""


class StateError(HealthExporterError, ValueError):
    """Saved state that cannot be used: damaged, from a newer version, or of another shape."""


class ReceiptError(HealthExporterError, ValueError):
    """A receipt folder or file that is missing or is no receipt."""
