"""llm.c: `step 10/18865 | loss 7.12 (+0.1z)| norm 2.3 (-0.2z)| lr 1e-05 | 3000.12 ms | ...`."""

from __future__ import annotations

import re

from health_exporter.replay.number import NUMBER
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_ROW = re.compile(
    rf"\bstep\s+(\d+)/\d+\s*\|\s*(?:train )?loss\s+({NUMBER})\s*(?:\([^)]*\))?\s*"
    rf"\|\s*norm\s+({NUMBER})\s*(?:\([^)]*\))?\s*\|\s*lr\s+({NUMBER})\s*\|\s*({NUMBER})\s*ms\b",
    re.IGNORECASE,
)
_OLD = re.compile(
    rf"\bstep\s+(\d+)(?:/\d+)?:\s*train loss\s+({NUMBER})\s+(?:\(acc [^)]*\)\s*)?"
    rf"\((?:took )?({NUMBER})\s*ms\b",
    re.IGNORECASE,
)
_FILE = re.compile(
    rf"s:(\d+) trl:({NUMBER})(?: lr:({NUMBER}))?(?: norm:({NUMBER}))?\s*$", re.IGNORECASE
)
_BEGUN = re.compile(r"\s*(?:step\s+\d+/\d+\s*\||s:\d+ trl:)")


class LlmCReader(TextReader):
    """What llm.c prints, now and in its first months, and its `main.log`."""

    name = "llm.c"
    title = "llm.c text"
    certain = 0.97  # more of the line is looked at than by nanoGPT's reader, which takes some too

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        return {
            "step": "step or s:",
            "loss": "loss or trl:",
            "grad_norm": "norm",
            "step_time_s": "ms",
            "lr": "lr",
        }

    def parse(self, text: str) -> Fields | None:
        """The row on a line."""
        match = _ROW.search(text)
        if match is not None:
            step, loss, norm, rate, milliseconds = match.groups()
            return Fields(
                int(step), float(loss), float(norm), float(milliseconds) * 1e-3, float(rate)
            )
        match = _FILE.match(text)
        if match is not None:
            step, loss, rate, norm = match.groups()
            return Fields(
                int(step),
                float(loss),
                None if norm is None else float(norm),
                None,
                None if rate is None else float(rate),
            )
        match = _OLD.search(text)
        if match is not None:
            step, loss, milliseconds = match.groups()
            return Fields(int(step), float(loss), None, float(milliseconds) * 1e-3)
        if _BEGUN.match(text):
            raise DamagedLineError("a row that cannot be read to its end")
        return None
