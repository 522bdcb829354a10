"""How codes, kinds, reasons and states are shown: one text and one colour each, everywhere."""

from __future__ import annotations

from grafana.source import panel, query
from grafana.source.panel import BLUE, GREEN, GREY, ORANGE, RED, TEXT
from health_exporter.core.anomaly import KINDS
from health_exporter.core.standing import REASONS

_STATES = {
    "starting": ("Starting", BLUE),
    "running": ("Healthy", GREEN),
    "finished": ("Finished", BLUE),
    "terminated": ("Terminated", GREY),
    "interrupted": ("Interrupted", GREY),
    "failed": ("Failed", RED),
}

VERDICT = panel.mapped(
    {
        **{str(query.STATE_CODES[state]): shown for state, shown in _STATES.items()},
        str(query.NOT_SCRAPED): ("Not scraped", GREY),
        str(query.NO_RULES): ("Rules not loaded", ORANGE),
        str(query.WARNING): ("Needs a look", ORANGE),
        **{str(query.PAGE_CODES[alert.name]): (alert.words, RED) for alert in query.PAGES},
    }
)
"""The code of `query.verdict`."""

ALERT = panel.mapped(
    {
        alert.name: (alert.summary, RED if alert.severity == "critical" else ORANGE)
        for alert in query.ALERTS
    }
)
"""An alert's name, as what its rule says of it."""

SEVERITY = panel.mapped({"critical": ("page", RED), "warning": ("ticket", ORANGE)})

KIND_IN_SHORT = panel.mapped({kind: (kind.replace("_", " "), TEXT) for kind in KINDS})
KIND = panel.mapped({kind: (meaning, TEXT) for kind, meaning in KINDS.items()})

_REASONS = {
    "dead": ("dead", RED),
    "stuck": ("stuck", RED),
    "missing": ("never came", RED),
    "failed": ("failed", RED),
    "terminated": ("terminated", ORANGE),
    "interrupted": ("interrupted", ORANGE),
}
REASON = panel.mapped({reason: _REASONS[reason] for reason in REASONS})

RANK_STATES = {
    "starting": ("starting", BLUE),
    "running": ("running", TEXT),
    "finished": ("finished", BLUE),
    "terminated": ("terminated", GREY),
    "interrupted": ("interrupted", GREY),
    "failed": ("failed", RED),
}
RANK_STATE = panel.mapped(RANK_STATES)
