"""A hook of mkdocs: roles such as :class: in docstrings become plain code on the pages."""

import re
from typing import Any

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc|obj):\s*<code>~?")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with its roles removed; what they name stays."""
    return _ROLE.sub("<code>", html)
