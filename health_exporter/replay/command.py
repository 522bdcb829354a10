"""`health-exporter replay`: its options, and how it runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from health_exporter.core import strict_json
from health_exporter.core.monitor import TrainingHealthMonitor
from health_exporter.replay import reading, report
from health_exporter.replay.detection import FORMATS
from health_exporter.replay.error import LogError
from health_exporter.replay.judging import Judging, plainly
from health_exporter.replay.number import unix_time
from health_exporter.replay.openmetrics import OpenMetricsFile
from health_exporter.replay.row import FIELDS
from health_exporter.runtime.report import verdict

if TYPE_CHECKING:  # numpy and matplotlib take longer to import than other commands to run
    from health_exporter.replay.curve import Curve

_DESCRIPTION = """\
Read the log of a training run that is over, or of one that goes on elsewhere, and judge it step by
step as if it were live: loss and gradient norm spikes, NaN, drift, lossy resumes, lost speed.
Several FILEs are one run, in the order given. Files may be compressed with gzip.
"""

_EPILOG = f"""\
formats, told by themselves (--format where the guess is wrong):
  jsonl          JSON objects, one a line: one's own, Weights & Biases, Trackio, log_history
  csv            a table with a header: Weights & Biases exports, Lightning's metrics.csv, TSV
  trainer-state  Hugging Face trainer_state.json, or a JSON array of objects
  tensorboard    an event file, events.out.tfevents.*
  megatron, torchtitan, llm.c, nanogpt, lightning, hf-print
                 what these trainers print
  text           any lines with a step and a loss, as key=value or key: value

columns:
  Which column is what is guessed from its name, and shown. --map FIELD=COLUMN names one; the
  fields are {", ".join(FIELDS)}.
  Nested keys are written with slashes, train/loss.

what is made of the steps:
  A resume is known from a line such as "loading checkpoint", from a column "restart", and from
  steps that go back and go on from there. Steps that go back to the start are a launch of its own,
  judged afresh. The same step twice, from several ranks or launches, counts once. Damaged lines
  are counted and named, and nothing else. Times without a zone are read as UTC.

looking at an old run in Prometheus:
  health-exporter replay train.log --openmetrics run.om
  promtool tsdb create-blocks-from openmetrics run.om DATA
  prometheus --storage.tsdb.path=DATA --storage.tsdb.retention.time=10y
  Prometheus deletes what is older than its retention; --start places the run elsewhere in time.

exit status:
  0  the run is healthy; a few spikes are what training does
  1  it is not: NaN, or a resume that broke the loss curve
  2  wrong use, or no training log

examples:
  health-exporter replay train.log
  health-exporter replay history.csv --map loss='run-a - train/loss' --plot run-a.png
  health-exporter replay first.log.gz second.log.gz --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a training log")
    parser.add_argument(
        "--format", choices=FORMATS, metavar="FORMAT", help="see below (default: told by itself)"
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="FIELD=COLUMN",
        help="take a column for a field; may be given several times",
    )
    parser.add_argument(
        "--spec",
        action="store_true",
        help="judge with the specification's defaults, which cry wolf, not the production preset",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the run into a .png, .svg or .pdf"
    )
    parser.add_argument(
        "--openmetrics", type=Path, metavar="FILE", help="write metrics for promtool; see below"
    )
    parser.add_argument(
        "--start",
        metavar="TIME",
        help="when the first step was, for --openmetrics: 2025-03-01T12:00:00Z or Unix seconds "
        "(default: as the log says, else so that the last step is when the file was last written)",
    )
    parser.add_argument(
        "--run", metavar="NAME", help="name of the run (default: that of the first file)"
    )


def run(args: argparse.Namespace) -> int:
    """Replay the files.

    Args:
        args: What `add_arguments` has parsed.

    Returns:
        The exit status: 0 healthy, 1 not.

    Raises:
        LogError: Options are wrong, or a file is no training log.
    """
    mapping = _mapping(args.map)
    start = _start(args)
    _check_outputs(args)
    logs = reading.find(args.files, mapping, args.format)
    name = args.run or _name_of(args.files[0])
    curve = _curve() if args.plot else None
    with _export(args, name, start) as export:
        judging = Judging(
            TrainingHealthMonitor if args.spec else TrainingHealthMonitor.production,
            plainly if export is None else export.judged_by,
            () if curve is None else (curve,),
        )
        result: dict[str, Any] = {
            "schema_version": 1,
            "run": name,
            "preset": "specification" if args.spec else "production",
            **reading.judge(logs, judging),
        }
        if export is not None:
            first, last = export.finish()
            path = str(args.openmetrics)
            result["openmetrics"] = {"path": path, "first_time": first, "last_time": last}
    result.update(verdict("replayed", result))
    encoded: dict[str, Any] = strict_json.encode(result)
    if curve is not None:
        from health_exporter.replay import plot

        plot.save(args.plot, curve, encoded["events"], title=_title(encoded))
    _print(encoded, as_json=args.json)
    return 0 if encoded["healthy"] else 1


def _export(
    args: argparse.Namespace, name: str, start: float | None
) -> contextlib.AbstractContextManager[OpenMetricsFile | None]:
    if not args.openmetrics:
        return contextlib.nullcontext()
    end_time = max(path.stat().st_mtime for path in args.files)
    return OpenMetricsFile(args.openmetrics, name, start_time=start, end_time=end_time)


def plot_receipt(path: Path, receipt: Mapping[str, Any]) -> None:
    """Draw a receipt, as far as it has data.

    Raises:
        LogError: matplotlib is not installed, or the file cannot be written.
    """
    from health_exporter.replay import plot
    from health_exporter.replay.receipt_curve import curve_of_receipt

    plot.check(path)
    curve, events = curve_of_receipt(receipt)
    title = f"{receipt.get('run', '')}: {receipt.get('status', '')}"
    last = receipt.get("last_step")
    last_step = last if isinstance(last, int) else None
    plot.save(path, curve, events, title=title, last_step=last_step)


def _curve() -> Curve:
    from health_exporter.replay.curve import Curve

    return Curve()


def _mapping(pairs: Sequence[str]) -> dict[str, str]:
    mapping = {}
    for pair in pairs:
        field, equals, column = pair.partition("=")
        field = {"step_time": "step_time_s", "timestamp": "time"}.get(field.strip(), field.strip())
        if not equals or not column or field not in FIELDS:
            raise LogError(f"--map {pair}: write FIELD=COLUMN; the fields are {', '.join(FIELDS)}")
        mapping[field] = column
    return mapping


def _start(args: argparse.Namespace) -> float | None:
    if args.start is None:
        return None
    if not args.openmetrics:
        raise LogError("--start has no effect without --openmetrics")
    start = unix_time(args.start)
    if start is None:
        raise LogError(f"--start {args.start}: write 2025-03-01T12:00:00Z, or Unix seconds")
    return start


def _check_outputs(args: argparse.Namespace) -> None:
    """Say what cannot be written before an hour of work, not after."""
    if args.plot:
        from health_exporter.replay import plot

        plot.check(args.plot)
    for option, path in (("--plot", args.plot), ("--openmetrics", args.openmetrics)):
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise LogError(f"{option} {path}: there is no such folder, or it is one")


def _name_of(path: Path) -> str:
    name = path.name.removesuffix(".gz")
    return name.rpartition(".")[0] or name


def _title(result: dict[str, Any]) -> str:
    state = "healthy" if result["healthy"] else "not healthy: " + ", ".join(result["reasons"])
    return f"{result['run']}: {result['n_steps']:,} steps, {state}"


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        json.dump(result, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        Console().print(report.render(result))
