"""A real trainer to try the exporter on: a small GPT under torchrun, and ways to break it."""

from __future__ import annotations
