"""The command `health-exporter`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import health_exporter
from health_exporter import asset, receipt_table
from health_exporter.demo import command as demo_command
from health_exporter.discovery import command as targets_command
from health_exporter.errors import HealthExporterError
from health_exporter.replay import command as replay_command
from health_exporter.runtime.receipt_reader import read_receipt

_EPILOG = """exit codes:
  0  all is well
  1  what was checked is bad: the run failed, was lost, or is not healthy
  2  wrong use
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments without the program's name; None: those of the process.

    Returns:
        The exit code: 0 well, 1 what was checked is bad, 2 wrong use.
    """
    args = _parser().parse_args(argv)
    try:
        code: int = args.run_command(args)
    except HealthExporterError as error:
        print(f"health-exporter: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, a pager say, has seen enough
        sys.stderr.close()
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="health-exporter",
        description="Is the training run healthy? Judged from inside, published for Prometheus.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"health-exporter {health_exporter.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="train a small language model here, and watch it")
    demo_command.add_arguments(demo)
    demo.set_defaults(run_command=demo_command.run)
    replay = commands.add_parser("replay", help="judge the log of a run, whatever trainer wrote it")
    replay_command.add_arguments(replay)
    replay.set_defaults(run_command=replay_command.run)
    report = commands.add_parser(
        "report",
        help="show the receipt of a run",
        description="Show the receipt of a run, also of one that was killed.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "path",
        type=Path,
        metavar="DIR|FILE",
        help="a report.json, the folder of a run, or a folder of receipts that holds one run",
    )
    report.add_argument("--json", action="store_true", help="print the receipt as JSON")
    report.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it into a .png, .svg or .pdf"
    )
    report.set_defaults(run_command=_report)
    targets = commands.add_parser("targets", help="list the ranks' endpoints for Prometheus")
    targets_command.add_arguments(targets)
    targets.set_defaults(run_command=targets_command.run)
    assets = commands.add_parser(
        "assets",
        help="write out the shipped alerting rules, configurations and dashboards",
        description="Write out the shipped alerting rules, configurations and dashboards.",
    )
    assets.add_argument("path", type=Path, metavar="DIR", help="where to; made if need be")
    assets.add_argument(
        "--force", action="store_true", help="overwrite files that have been changed there"
    )
    assets.set_defaults(run_command=_assets)
    return parser


def _assets(args: argparse.Namespace) -> int:
    for folder in asset.write(args.path, force=args.force):
        print(folder)
    return 0


def _report(args: argparse.Namespace) -> int:
    receipt = read_receipt(args.path)
    if args.plot is not None:
        replay_command.plot_receipt(args.plot, receipt)
    if args.json:
        json.dump(receipt, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        Console().print(receipt_table.render(receipt))
    return 0 if receipt.get("healthy", True) else 1


if __name__ == "__main__":
    sys.exit(main())
