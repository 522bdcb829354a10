"""What each rank leaves on disk for file-based service discovery: where its endpoint is.

`receipt_dir/<run>/ranks/rank-<N>.json` is written when the rank starts and taken away when it has
finished. After any other end it stays, with the state that the rank named, if it could: a target
that goes with its process hides the outage.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from health_exporter.errors import ReceiptError
from health_exporter.runtime.atomic_file import write_atomically
from health_exporter.runtime.identity import Identity
from health_exporter.runtime.receipt import run_folder
from health_exporter.runtime.settings import Settings
from health_exporter.runtime.target import Target

log = logging.getLogger(__name__)

FOLDER = "ranks"

_LOOK_S = 30.0
"""How often rank 0 looks for the registrations of ranks that it has not heard of. 16,384 of them
take half a second of a core, and that only while some rank is missing."""

_CLOSE_S = 1.0
"""At the end, the file is waited for no longer: the folder may be on a file system that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What a rank's file says.

    Args:
        run: Name of the run.
        rank: Its number in the job.
        local_rank: Its number on its machine.
        world_size: Ranks in the job.
        attempt: How often the launcher has restarted the job.
        host: Name of its machine.
        address: `host:port` of its endpoint; "" if it has none.
        pid: Its process.
        state: What it last wrote of itself; its end, or that it started.
        time: Unix time of its start, in seconds.
    """

    run: str
    rank: int
    local_rank: int
    world_size: int
    attempt: int
    host: str
    address: str
    pid: int
    state: str
    time: float

    def text(self) -> str:
        """As it stands in the file."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def parse(cls, text: str) -> Registered:
        """From what `text` gave; fields of a later version are passed over.

        Raises:
            ValueError: It is no registration.
        """
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        values: dict[str, Any] = {}
        for field in fields(cls):
            value = content.get(field.name)
            kinds = {"int": (int,), "float": (int, float), "str": (str,)}[str(field.type)]
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"{field.name} is {value!r}")
            values[field.name] = value
        return cls(**values)


class Registration:
    """This rank's file. Written by a thread of its own: the folder may hang, the beats must not.

    Args:
        settings: Settings.
        identity: Who this process is.
        any_missing: On rank 0: whether there are ranks that it has not heard of.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        *,
        any_missing: Callable[[], bool],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._any_missing = any_missing
        self._wall = wall
        self.found: Sequence[Target] = ()  # on rank 0; the other ranks' among them
        self._closing = threading.Event()
        folder = run_folder(settings.receipt_dir, settings.run) / FOLDER
        self.path = folder / f"rank-{identity.rank}.json"
        self._written: Registered | None = None
        self._thread: threading.Thread | None = None

    def start(self, address: str, state: str) -> None:
        """Write the file soon."""
        identity = self._identity
        registered = Registered(
            run=self._settings.run,
            rank=identity.rank,
            local_rank=identity.local_rank,
            world_size=identity.world_size,
            attempt=identity.attempt,
            host=identity.host,
            address=address,
            pid=os.getpid(),
            state=state,
            time=round(self._wall(), 3),
        )
        self._spawn(lambda: self._write(registered))

    def close(self, state: str) -> None:
        """Take the file away if `state` is `finished`, else note the state; takes 1 s at most."""
        deadline = time.monotonic() + _CLOSE_S
        self._closing.set()
        if self._thread is None or not self._join(deadline) or self._written is None:
            return
        self._spawn(lambda: self._end(state))
        self._join(deadline)

    def _spawn(self, action: Callable[[], None]) -> None:
        def run() -> None:
            try:
                action()
            except OSError as error:
                log.warning("registration %s could not be written: %s", self.path, error)

        self._thread = threading.Thread(
            target=run, name="health-exporter-registration", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # Python 3.12 starts none while the program ends
            log.debug("no thread for the registration: %s", error)
            self._thread = None
            run()

    def _join(self, deadline: float) -> bool:
        if self._thread is None:
            return True
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _write(self, registered: Registered) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, registered.text(), sync=False)
        self._written = registered
        if self._identity.rank != 0 or self._identity.world_size == 1:
            return
        # After the own one, which says how many ranks there are now.
        self._look()
        while not self._closing.wait(_LOOK_S) and self._any_missing():
            self._look()

    def _look(self) -> None:
        settings = self._settings
        try:
            found = read_registered(Path(settings.receipt_dir), settings.run, on_damaged=log.debug)
        except (ReceiptError, OSError) as error:  # the folder has been taken away, say
            log.debug("registrations cannot be read: %s", error)
        else:
            self.found = registered_targets(found)

    def _end(self, state: str) -> None:
        written = self._written
        assert written is not None
        with contextlib.suppress(FileNotFoundError):  # somebody tidied up
            if self.path.read_text(encoding="utf-8") != written.text():
                return  # the next attempt's, already
            if state == "finished":
                self.path.unlink()
            else:
                ended = {**asdict(written), "state": state}
                write_atomically(self.path, Registered(**ended).text(), sync=False)


def read_registered(
    folder: Path, run: str | None = None, *, on_damaged: Callable[[str], None]
) -> list[Registered]:
    """What the ranks have left in a folder of receipts, or in the folder of one run.

    Args:
        folder: `receipt_dir`, or one run's folder in it.
        run: Only of this run; None: of all.
        on_damaged: Called with a line about each file that has to be passed over.

    Raises:
        ReceiptError: There is no such folder, or nothing of this run in it.
        OSError: A folder cannot be read.
    """
    if not folder.is_dir():
        raise ReceiptError(f"{folder} is no folder")
    own = folder / FOLDER
    if run is None:
        folders = [own, *(path / FOLDER for path in sorted(folder.iterdir()))]
    else:
        below = run_folder(folder, run)
        folders = [below / FOLDER]
        if not below.is_dir():
            if folder.resolve().name != below.name:
                raise ReceiptError(f"{folder} holds nothing of run {run!r}")
            folders = [own]
    found = [registered for path in folders for registered in _read_folder(path, on_damaged)]
    return [registered for registered in found if run in (None, registered.run)]


def _read_folder(folder: Path, on_damaged: Callable[[str], None]) -> Iterator[Registered]:
    for path in sorted(folder.glob("rank-*.json")):
        try:
            yield Registered.parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # it has just finished
            continue
        except (OSError, ValueError) as error:
            on_damaged(f"{path} is no registration: {error}")


def registered_targets(found: Iterable[Registered]) -> list[Target]:
    """Targets of the ranks that belong to the newest attempt of each run, by run and rank.

    The rank that started last knows how many ranks there are now: those beyond are of a larger
    attempt before it. A rank below that has not come again keeps its old address, where it is
    missed. Of several that name one address, all but the last to start have left it. The
    launcher's count of restarts cannot tell: it begins anew with each job.
    """
    by_run: dict[str, list[Registered]] = {}
    for registered in found:
        by_run.setdefault(registered.run, []).append(registered)
    members = [member for ranks in by_run.values() for member in _members(ranks)]
    at: dict[str, Registered] = {}
    for registered in sorted(members, key=_by_start):
        at[registered.address] = registered
    return [
        Target(
            address=registered.address,
            run=registered.run,
            host=registered.host,
            rank=registered.rank,
            local_rank=registered.local_rank,
        )
        for registered in sorted(at.values(), key=lambda found: (found.run, found.rank))
        if registered.address and registered.state != "finished"
    ]


def _members(ranks: Sequence[Registered]) -> Iterator[Registered]:
    world_size = max(ranks, key=_by_start).world_size
    return (registered for registered in ranks if registered.rank < world_size)


def _by_start(registered: Registered) -> tuple[float, int, int]:
    return registered.time, registered.attempt, registered.rank
