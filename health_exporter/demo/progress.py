"""What the person at the terminal sees while the demo trains."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

# The numbers alone fill a terminal of 80 columns; a bar beside them needs this many.
_WIDE = 115

# In a pipe: enough lines to see that it goes on, few enough to read.
_LINES = 20


class StepProgress:
    """A line that renews itself on a terminal; a plain line every so many steps in a pipe.

    Args:
        console: Where to print.
        steps: Steps of the whole run.
    """

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._every = max(1, steps // _LINES)
        self._n_anomalies = 0
        wide = (BarColumn(bar_width=20), TimeRemainingColumn()) if console.width >= _WIDE else ()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("step {task.completed}/{task.total}"),
            *wide,
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=steps)

    def __enter__(self) -> StepProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def show(self, event: Mapping[str, Any]) -> None:
        """Show a `step` event."""
        step, anomalies = event["step"], event["anomalies"]
        self._n_anomalies += len(anomalies)
        line = _line(event, self._n_anomalies)
        brief = " ".join(line.split())
        self._bar.update(self._task, completed=step + 1, description=brief)
        due = not self._console.is_terminal and (step + 1) % self._every == 0
        if anomalies or due:
            note = f"  <- {', '.join(anomalies)}" if anomalies else ""
            self.note(f"step {step:>{len(str(self._steps))}}  {line}{note}")

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _line(event: Mapping[str, Any], n_anomalies: int) -> str:
    mfu = event["mfu"]
    return "  ".join(
        (
            f"loss {event['loss']:7.4f}",
            f"grad norm {event['grad_norm']:7.3f}",
            f"{event['tokens_per_second']:7,.0f} tokens/s",
            "MFU     -" if mfu is None else f"MFU {mfu:5.1%}",
            f"anomalies {n_anomalies}",
        )
    )
