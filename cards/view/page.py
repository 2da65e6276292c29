"""Put data, style and script into one HTML file that asks nothing of the network.

The data are compressed JSON in base64, whose alphabet holds no markup, and a policy in the page
lets no script run but ours: whatever a trace says stays text.
"""

import base64
import gzip
import hashlib
import json
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

Json = dict[str, Any]


def render_page(view: Json) -> str:
    """Return the page of a view (`rows_view`, `run_view`); the same view gives the same bytes."""
    style, script = _file("page.css"), _file("charts.js") + _file("page.js")
    environment = Environment(
        loader=PackageLoader("cards", "view"), undefined=StrictUndefined, autoescape=True
    )
    return environment.get_template("page.html.j2").render(
        title=view["title"],
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=_packed(view),
    )


def _packed(view: Json) -> str:
    content = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Without the time the same data are the same bytes.
    return base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()


def _file(name: str) -> str:
    return files("cards").joinpath("view", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
