"""`health-exporter demo`: its options, and how it begins."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable

from health_exporter.demo.fault import FAULTS
from health_exporter.demo.settings import DemoSettings
from health_exporter.demo.stack import STACK_LINGER_S, StackError
from health_exporter.errors import SettingsError

_DESCRIPTION = """\
Train a small language model on the source of Python's standard library, on several ranks under
torchrun, with the exporter in the loop: every rank serves its metrics, rank 0 judges each step and
leaves a receipt. With --fault the run is really broken, so that you see what is found.
"""

_EPILOG = """\
exit status:
  0  the run finished, and its receipt calls it healthy
  1  it did not finish, it is not healthy, or the fault that it was given was not found
  2  wrong use

example:
  health-exporter demo --fault lossy-resume
  health-exporter demo --ranks 4 --fault hang-rank --fault-hold 30
  health-exporter demo --stack --fault kill-rank
"""


# Option: type, field of the settings, placeholder, help.
_OPTIONS: dict[str, tuple[Callable[[str], object], str, str, str]] = {
    "--steps": (int, "steps", "N", "optimizer steps; by default about a minute on two cores"),
    "--ranks": (int, "ranks", "N", "processes that train together; they share one batch"),
    "--port": (
        *(int, "port", "PORT"),
        "port of rank 0's metrics; the other ranks have the next ones; 0: free ones",
    ),
    "--out": (str, "out", "DIR", "folder for checkpoint, receipts and log"),
    "--seed": (int, "seed", "N", "of the weights and of the order of the text"),
    "--run": (str, "run", "NAME", "name of the run"),
    "--at-step": (
        *(int, "at_step", "N"),
        "step in which the fault happens, counted from 0; by default at three fifths of the run",
    ),
    "--fault-hold": (
        *(float, "fault_hold_s", "SECONDS"),
        "how long a hung or stopped rank is left so before the job is ended",
    ),
    "--linger": (
        *(float, "linger_s", "SECONDS"),
        "how long the endpoints stay at the end, at most, for one more scrape",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the demo."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG + "\nfaults:\n" + _fault_list()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    settings = DemoSettings()
    parser.add_argument(
        "--fault",
        help="what goes wrong; see below (default: %(default)s)",
        choices=tuple(FAULTS),
        default=settings.fault,
    )
    for option, (kind, field, metavar, text) in _OPTIONS.items():
        default = getattr(settings, field)
        shown = f"{default:g}" if isinstance(default, float) else default
        parser.add_argument(
            option,
            help=text if default is None else f"{text} (default: {shown})",
            type=kind,
            default=default,
            dest=field,
            metavar=metavar,
        )
    parser.add_argument(
        "--stack",
        help="start Prometheus and Alertmanager with the shipped rules, at three times their pace, "
        "and print each page as the person on call would get it",
        action="store_true",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Args:
        args: What `add_arguments` has parsed.

    Returns:
        The exit status; see the epilog of the help.
    """
    try:
        given = {field: getattr(args, field) for _, field, _, _ in _OPTIONS.values()}
        if args.stack:
            given["linger_s"] = max(given["linger_s"], STACK_LINGER_S)
        settings = DemoSettings(fault=args.fault, **given)
    except SettingsError as error:
        return _wrong_use("\n".join(error.problems))
    if importlib.util.find_spec("torch") is None:
        return _wrong_use('torch is not installed: pip install "health-exporter[demo]"')

    from rich.console import Console

    from health_exporter.demo.launch import Launcher
    from health_exporter.demo.paging import run_with_stack

    try:
        if args.stack:
            return run_with_stack(settings, Console())
        return Launcher(settings, Console()).run()
    except StackError as error:
        return _wrong_use(str(error))
    except OSError as error:
        return _wrong_use(f"--out {args.out} cannot be used: {error}")


def _wrong_use(message: str) -> int:
    for line in message.splitlines():
        print(f"health-exporter demo: {line}", file=sys.stderr)
    return 2


def _fault_list() -> str:
    return "\n".join(f"  {name:<14}{fault.help}" for name, fault in FAULTS.items()) + "\n"
