"""torchtitan: `step: 10  loss:  8.1234  grad_norm:  1.2345  memory: ...  tps: ...  mfu: ...`."""

from __future__ import annotations

import re

from health_exporter.replay.number import NUMBER
from health_exporter.replay.text import DamagedLineError, Fields, TextReader

_ROW = re.compile(
    rf"\bstep:\s*(\d+)\s+(?:global_avg_)?loss:\s*({NUMBER})(?![\w.])(?:.*?\sgrad_norm:\s*({NUMBER})(?![\w.]))?",
    re.IGNORECASE,
)
_RATE = re.compile(rf"\blr:\s*({NUMBER})(?![\w.])", re.IGNORECASE)
_BEGUN = re.compile(r"\bstep:\s*\d+\s+loss:")


class TorchTitanReader(TextReader):
    """The console lines of torchtitan; step times come from the dates of the lines."""

    name = "torchtitan"
    title = "torchtitan text"

    def columns(self) -> dict[str, str]:
        """Field to the words that it stands behind."""
        return {"step": "step:", "loss": "loss:", "grad_norm": "grad_norm:", "time": "date"}

    def parse(self, text: str) -> Fields | None:
        """The row on a line. Evaluations, which begin with `validate`, are none."""
        if "step:" not in text or "validate" in text:
            return None
        match = _ROW.search(text)
        # The counters behind the loss tell these lines from other loops' that write `step: 1`.
        if match is None or not ("tps:" in text or "mfu:" in text or "memory:" in text):
            if _BEGUN.search(text):
                raise DamagedLineError("a step that cannot be read to its end")
            return None
        step, loss, norm = match.groups()
        rate = _RATE.search(text, match.end()) if "lr:" in text else None
        return Fields(
            int(step),
            float(loss.replace(",", "")),
            None if norm is None else float(norm.replace(",", "")),
            None,
            None if rate is None else float(rate.group(1)),
        )
