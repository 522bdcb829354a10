"""What a reader found in a file beside its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

# A file of another kind, or one damaged throughout, is told from its first lines.
_LISTED = 100


@dataclass(slots=True)
class Tally:
    """Counts of one file, filled while it is read.

    Args:
        unit: What is numbered: lines, records or objects.
        columns: Field to the name of the column that it was taken from.
        notes: What else a person should know of how the file was read.
        n_rows: Rows found.
        n_lines: Lines, records or objects read.
        n_damaged: Those that should have been rows and could not be read.
        damaged: Numbers of the first of them, and what is wrong.
        n_other_ranks: Rows left out because another rank's are followed.
        n_skipped_steps: Steps that the loss scaler skipped, where the log counts them.
    """

    unit: str = "line"
    columns: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    n_rows: int = 0
    n_lines: int = 0
    n_damaged: int = 0
    damaged: list[tuple[int, str]] = field(default_factory=list)
    n_other_ranks: int = 0
    n_skipped_steps: int = 0

    def damage(self, number: int, reason: str) -> None:
        """Line `number` is damaged."""
        self.n_damaged += 1
        if len(self.damaged) < _LISTED:
            self.damaged.append((number, reason))

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)
