"""The page at `/`: the newest values, for people without a dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from health_exporter.snapshot import Snapshot

_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:44rem;padding:0 1rem}"
    "th{text-align:left;font-weight:normal;padding-right:2rem}td{font-variant-numeric:tabular-nums}"
)


def status_page(snapshot: Snapshot) -> str:
    """State, step and newest values as one HTML document without outside assets."""
    title = f"{snapshot.run}, rank {snapshot.rank}"
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in _values(snapshot)
    )
    report = " \u00b7 <a href=/report>receipt so far</a>" if snapshot.whole else ""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        "<meta http-equiv=refresh content=10>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1><table>{rows}</table>"
        f"<p><a href=/metrics>metrics</a> \u00b7 <a href=/healthz>health</a>{report}</p>"
        "</main></body></html>\n"
    )


def _values(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    own, whole = snapshot.own, snapshot.whole
    yield "state", own.state if whole is None else whole.state
    yield "step", "none yet" if own.step is None else f"{own.step:,}"
    yield "host", own.host
    if whole is None:
        return
    last = whole.last
    for name, value, form in (
        ("loss", last.loss, "{:.4f}"),
        ("gradient norm", last.grad_norm, "{:.4g}"),
        ("loss z-score", last.loss_judged and last.loss_judged[2], "{:+.2f}"),
        ("gradient norm z-score", last.grad_judged and last.grad_judged[2], "{:+.2f}"),
        ("MFU", last.mfu, "{:.1%}"),
        ("goodput", whole.goodput, "{:.1%}"),
    ):
        if value is not None:
            yield name, form.format(value)
    counts = ", ".join(f"{kind} {n}" for kind, n in last.anomalies.items() if n)
    yield "anomalies", counts or "none"
    yield "resumes", f"{last.n_restarts}" + ("" if last.continuity_ok else ", curve broken")
    yield "ranks", ", ".join(f"{status} {n}" for status, n in whole.ranks.items() if n)
