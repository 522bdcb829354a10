"""`health-exporter targets`: its options, and what it writes."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from health_exporter.discovery.host import expand_nodelist, parse_hostfile
from health_exporter.errors import ReceiptError, SettingsError
from health_exporter.runtime.atomic_file import replacing
from health_exporter.runtime.registration import read_registered, registered_targets
from health_exporter.runtime.settings import DEFAULT_PORT, Settings
from health_exporter.runtime.target import Target, join_address, render

_NODELIST = "SLURM_JOB_NODELIST"

_DESCRIPTION = """\
List the ranks' endpoints for Prometheus' file-based service discovery (file_sd_configs), from a
host file, from a Slurm node list, or from what the ranks themselves leave beside their receipts.
"""

_EPILOG = """\
The targets carry __meta_training_health_run, _rank, _local_rank and _host where they are known.
Prometheus drops them unless relabel_configs map them; the metrics have labels run and rank of
their own.

exit status:
  0  the list is written
  2  wrong use: nothing is written

examples:
  health-exporter targets --slurm 'gpu[001-016]' --ranks-per-host 8 --out targets/job.json
  health-exporter targets --receipts health_receipts --watch 10 --out targets/runs.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--hostfile", metavar="FILE", help="one host a line; '# comment' and 'slots=N' as Open MPI"
    )
    source.add_argument(
        "--slurm",
        metavar="NODELIST",
        nargs="?",
        const="",
        help=f"such as gpu[001-004,007],login1; without a value: ${_NODELIST}",
    )
    source.add_argument(
        "--receipts", metavar="DIR", help="the job's receipt_dir, where its ranks register"
    )
    parser.add_argument(
        "--port",
        type=int,
        metavar="PORT",
        help=f"of a host's first rank, the others have the next ones (default: {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--ranks-per-host",
        type=int,
        metavar="N",
        help="endpoints on each host (default: the host file's slots, else 1)",
    )
    parser.add_argument(
        "--run", metavar="NAME", help="name of the run; with --receipts, list only this run's"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="replaced atomically (default: standard output)"
    )
    parser.add_argument(
        "--watch",
        type=float,
        metavar="SECONDS",
        help="look again every so often until interrupted, and rewrite --out when it changes",
    )


def run(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Write the list.

    Args:
        args: What `add_arguments` has parsed.
        environ: Environment variables.

    Returns:
        The exit status, 0.

    Raises:
        SettingsError: Options are wrong, or name what cannot be read or written.
    """
    _check(args)
    find = _source(args, environ)
    if args.out is None:
        sys.stdout.write(render(find()))
        return 0
    out = Path(args.out)
    _update(out, render(find()))
    if args.watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(out, find, args.watch)
    return 0


def _check(args: argparse.Namespace) -> None:
    problems = []
    if args.port is not None and not 1 <= args.port <= 65535:
        problems.append(f"--port must be within 1..65535, got {args.port}")
    if args.ranks_per_host is not None and not 1 <= args.ranks_per_host <= 65535:
        problems.append(f"--ranks-per-host must be within 1..65535, got {args.ranks_per_host}")
    if args.run is not None:
        try:
            Settings(run=args.run)
        except SettingsError as error:
            problems += [f"--{problem}" for problem in error.problems]
    if args.watch is not None and not 0 < args.watch < math.inf:
        problems.append(f"--watch must be a number of seconds > 0, got {args.watch:g}")
    if args.watch is not None and args.out is None:
        problems.append("--watch needs --out FILE")
    if args.out is not None and (not args.out or Path(args.out).is_dir()):
        problems.append(f"--out must be a file, got {args.out!r}")
    if args.receipts is not None:
        problems += [
            f"{option} {value} has no effect with --receipts: registrations say it"
            for option, value in (
                ("--port", args.port),
                ("--ranks-per-host", args.ranks_per_host),
            )
            if value is not None
        ]
    if problems:
        raise SettingsError(problems)


def _source(args: argparse.Namespace, environ: Mapping[str, str]) -> Callable[[], list[Target]]:
    """Where the targets are looked up; it raises SettingsError when they cannot be."""

    said: set[str] = set()

    def complain(line: str) -> None:
        if line not in said:  # once, not at every look
            said.add(line)
            sys.stderr.write(f"health-exporter: {line}\n")

    def from_hostfile() -> list[Target]:
        with _naming("--hostfile", args.hostfile):
            return list(_host_targets(_read_hostfile(args.hostfile), args))

    def from_slurm() -> list[Target]:
        text = args.slurm or environ.get(_NODELIST, "")
        if not text:
            raise SettingsError([f"--slurm has no value, and {_NODELIST} is not set"])
        with _naming("--slurm", text):
            return list(_host_targets(dict.fromkeys(expand_nodelist(text), 1), args))

    def from_receipts() -> list[Target]:
        with _naming("--receipts", args.receipts):
            found = read_registered(Path(args.receipts), args.run, on_damaged=complain)
            return registered_targets(found)

    if args.hostfile is not None:
        return from_hostfile
    return from_receipts if args.receipts is not None else from_slurm


@contextlib.contextmanager
def _naming(option: str, value: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingsError([f"{option} {value!r} cannot be read: {reason}"]) from error
    except (ReceiptError, ValueError) as error:
        raise SettingsError([f"{option} {value!r}: {error}"]) from error


def _read_hostfile(path: str) -> dict[str, int]:
    return parse_hostfile(Path(path).read_text(encoding="utf-8"))


def _host_targets(slots: Mapping[str, int], args: argparse.Namespace) -> Iterator[Target]:
    first = DEFAULT_PORT if args.port is None else args.port
    for host, n_slots in slots.items():
        n_ranks = n_slots if args.ranks_per_host is None else args.ranks_per_host
        if first + n_ranks > 65536:
            raise ValueError(
                f"{n_ranks} ranks on {host} from port {first} on need ports above 65535"
            )
        for local_rank in range(n_ranks):
            yield Target(
                address=join_address(host, first + local_rank),
                run=args.run or "",
                host=host,
                local_rank=local_rank,
            )


def _update(out: Path, text: str) -> None:
    """Replace the file if it says anything else.

    Raises:
        SettingsError: It cannot be written; it is as it was then.
    """
    try:
        if out.exists() and out.read_bytes() == text.encode():
            return
        with replacing(out, shared=True, sync=True) as file:
            file.write(text.encode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingsError([f"--out {str(out)!r} cannot be written: {reason}"]) from error


def _watch(out: Path, find: Callable[[], list[Target]], interval_s: float) -> None:
    """Keep the file up to date for ever; while that fails, it stays as it is."""
    trouble = ""
    while True:
        time.sleep(interval_s)
        try:
            _update(out, render(find()))
        except SettingsError as error:
            if str(error) != trouble:
                sys.stderr.write(f"health-exporter: {error}; {out} stays as it is\n")
            trouble = str(error)
        else:
            trouble = ""
