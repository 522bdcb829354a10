"""`health-exporter demo`: its options, and how it begins."""

from __future__ import annotations

import argparse
import importlib.util
import sys

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the demo."""
    default = DemoSettings()
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG + "\nfaults:\n" + _fault_list()
    parser.formatter_class = argparse.RawDescriptionHelpFormatter

    def add(option: str, text: str, **kwargs: object) -> None:
        parser.add_argument(option, help=text, **kwargs)  # type: ignore[arg-type]  # as given below

    add(
        "--steps",
        "optimizer steps (default: %(default)s, about a minute on two cores)",
        type=int,
        default=default.steps,
        metavar="N",
    )
    add(
        "--ranks",
        "processes that train together; they share one batch (default: %(default)s)",
        type=int,
        default=default.ranks,
        metavar="N",
    )
    add(
        "--port",
        "port of rank 0's metrics, the other ranks have the next ones; 0: free ones "
        "(default: %(default)s)",
        type=int,
        default=default.port,
        metavar="PORT",
    )
    add(
        "--out",
        "folder for checkpoint, receipts and log (default: %(default)s)",
        default=default.out,
        metavar="DIR",
    )
    add(
        "--seed",
        "of the weights and of the order of the text (default: %(default)s)",
        type=int,
        default=default.seed,
        metavar="N",
    )
    add("--run", "name of the run (default: %(default)s)", default=default.run, metavar="NAME")
    add(
        "--fault",
        "what goes wrong; see below (default: %(default)s)",
        choices=tuple(FAULTS),
        default=default.fault,
    )
    add(
        "--at-step",
        "step in which it goes wrong, counted from 0 (default: at three fifths of the run)",
        type=int,
        default=None,
        metavar="N",
    )
    add(
        "--fault-hold",
        "how long a hung or stopped rank is left so before the job is ended (default: %(default)g)",
        type=float,
        default=default.fault_hold_s,
        metavar="SECONDS",
    )
    add(
        "--linger",
        "how long the endpoints stay at the end, at most, for one more scrape "
        "(default: %(default)g)",
        type=float,
        default=default.linger_s,
        metavar="SECONDS",
    )
    add(
        "--stack",
        "start Prometheus and Alertmanager with the shipped rules, at three times their pace, and "
        "print each page as the person on call would get it",
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
        settings = DemoSettings(
            steps=args.steps,
            ranks=args.ranks,
            port=args.port,
            out=args.out,
            seed=args.seed,
            run=args.run,
            fault=args.fault,
            at_step=args.at_step,
            linger_s=max(args.linger, STACK_LINGER_S) if args.stack else args.linger,
            fault_hold_s=args.fault_hold,
        )
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
