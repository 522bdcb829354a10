"""How the page at `/` looks, in light and dark, and the policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib

# Text has a contrast of 4.5 or more, lines and cells of 3 or more (WCAG AA): a test computes it.
COLOURS = {
    "light": {
        "bg": "#ffffff", "fg": "#1a1c1e", "muted": "#55595e", "rule": "#d5d8dc",
        "good": "#0b6b2e", "good-bg": "#e6f4ea", "bad": "#a30f0f", "bad-bg": "#fdecea",
        "warn": "#744700", "warn-bg": "#fff3d6", "info": "#0b4f8a", "info-bg": "#e8f1fb",
        "c1": "#0b62a8", "c2": "#8a3ea0", "centre": "#a65300", "band": "#0b62a8",
        "alive": "#2f7d4a", "stuck": "#a86200", "dead": "#b3161b", "missing": "#ffffff",
        "finished": "#5d6b7a", "on": "#ffffff", "on-missing": "#1a1c1e",
    },
    "dark": {
        "bg": "#14171a", "fg": "#e8eaec", "muted": "#a9aeb4", "rule": "#383d43",
        "good": "#7fdc9d", "good-bg": "#12311e", "bad": "#ffa69e", "bad-bg": "#42130f",
        "warn": "#ffd07a", "warn-bg": "#382a08", "info": "#9accff", "info-bg": "#10283f",
        "c1": "#6cb4f2", "c2": "#d3a0e6", "centre": "#f0a850", "band": "#6cb4f2",
        "alive": "#5cb37a", "stuck": "#e0a030", "dead": "#ff7b72", "missing": "#14171a",
        "finished": "#8d9aa8", "on": "#14171a", "on-missing": "#e8eaec",
    },
}  # fmt: skip


def _variables(theme: str) -> str:
    return "".join(f"--{name}:{value};" for name, value in COLOURS[theme].items())


STYLE = (
    f":root{{color-scheme:light dark;{_variables('light')}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables('dark')}}}}}"
    "*{box-sizing:border-box}"
    "body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;max-width:76rem;padding:0 1rem 2rem;"
    "background:var(--bg);color:var(--fg);overflow-wrap:anywhere}"
    "h1{font-size:1.25rem;margin:.8rem 0 .6rem}h1 small{font-weight:normal;color:var(--muted)}"
    "h2{font-size:1.1rem;margin:1.6rem 0 .5rem}h3{font-size:1rem;margin:1rem 0 .3rem}"
    "a{color:var(--info)}a:focus-visible{outline:3px solid var(--info);outline-offset:2px}"
    "small,.muted,.none{color:var(--muted)}p{margin:.4rem 0}"
    ".verdict{border-left:.5rem solid;border-radius:.3rem;padding:.7rem 1rem}"
    ".verdict h2{font-size:1.35rem;line-height:1.25;margin:0}"
    ".verdict ul{margin:.5rem 0 0;padding-left:1.2rem}.verdict li{margin:.3rem 0}"
    ".verdict li,.verdict p{color:var(--fg)}"
    ".good{color:var(--good);background:var(--good-bg)}.bad{color:var(--bad);background:var(--bad-bg)}"
    ".warn{color:var(--warn);background:var(--warn-bg)}.info{color:var(--info);background:var(--info-bg)}"
    "dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.2rem,1fr));gap:.6rem;margin:0}"
    "dl div{border:1px solid var(--rule);border-radius:.3rem;padding:.35rem .6rem}"
    "dt{color:var(--muted);font-size:.85rem}dd{margin:0;font-size:1.1rem;font-variant-numeric:tabular-nums}"
    "dd small{display:block;font-size:.8rem}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:1rem}"
    "figure{margin:0}figcaption{font-size:.9rem}figure svg{width:100%;height:auto;display:block}"
    "svg text{font:13px system-ui,sans-serif;fill:var(--muted)}svg .y,svg .last{text-anchor:end}"
    "svg .mid{text-anchor:middle}"
    ".line{fill:none;stroke-width:1.4;stroke-linejoin:round}.line.c1{stroke:var(--c1)}"
    ".line.c2{stroke:var(--c2);stroke-dasharray:5 2}.line.centre{stroke:var(--centre)}"
    ".area{fill-opacity:.45}.area.c1{fill:var(--c1);stroke:var(--c1);stroke-width:.7;stroke-opacity:.45}"
    ".area.c2{fill:var(--c2)}"
    "circle.c1{fill:var(--c1)}circle.c2{fill:var(--c2)}"
    ".grid{stroke:var(--rule);fill:none}.band{fill:var(--band);fill-opacity:.16}"
    ".level{stroke:var(--bad);stroke-dasharray:7 4;fill:none}"
    ".cut{stroke:var(--fg);stroke-dasharray:2 3;fill:none}"
    ".mark{fill:var(--bad);stroke:var(--bg)}.cross{stroke:var(--bad);stroke-width:2.5;fill:none}"
    ".span{fill:var(--bad);fill-opacity:.12}"
    ".key{font-size:.8rem;color:var(--muted);margin:.1rem 0 0}"
    ".key span{margin-right:.7rem;display:inline-block}"
    "svg.sample{display:inline-block;width:22px;height:12px;vertical-align:-1px}"
    "svg.sample.cell{width:14px;height:14px;vertical-align:-2px}"
    ".ranks svg{max-width:100%;width:auto}"
    ".alive{fill:var(--alive)}.stuck{fill:var(--stuck)}.dead{fill:var(--dead)}"
    ".finished{fill:var(--finished)}.missing{fill:var(--missing);stroke:var(--muted)}"
    ".gap{stroke:var(--bg);fill:none}.suspect{fill:none;stroke:var(--fg);stroke-width:2}"
    "svg text.on{fill:var(--on);text-anchor:middle;font-size:12px;stroke:none}"
    "svg text.on.missing{fill:var(--on-missing)}"
    "ul.counts{list-style:none;padding:0;margin:.4rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1rem}"
    "ul.who{margin:.4rem 0;padding-left:1.2rem}"
    "table{border-collapse:collapse;width:100%;margin:.4rem 0}"
    "caption{text-align:left;font-size:.9rem;color:var(--muted)}"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .5rem .25rem 0;"
    "border-bottom:1px solid var(--rule);font-variant-numeric:tabular-nums;overflow-wrap:normal}"
    ".free{overflow-wrap:anywhere}"
    "thead th{font-size:.85rem;font-weight:600}"
    "footer{margin-top:2rem;color:var(--muted);font-size:.9rem}"
    "@media(max-width:30rem){body{font-size:15px;padding:0 .8rem 1.5rem}th,td{font-size:.82rem}"
    "dl{grid-template-columns:repeat(auto-fill,minmax(6.5rem,1fr))}}"
)

_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS = {
    # Nothing is loaded or run but this style and the tab's icon, whatever a run's name contains.
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
"""Headers that go with the page."""
