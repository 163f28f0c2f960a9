"""The site of the documentation: `make docs` builds it into docs/_build."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]  # the two extensions, and the package that is documented

import efprof  # noqa: E402

project = "efprof"
author = "efprof maintainers"
version = release = efprof.__version__
extensions = ["myst_parser", "audit_pages", "outside_pages"]
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"efprof {version}"
html_extra_path = sorted(str(page) for page in (DOCS.parent / "reports").glob("*.html"))

myst_heading_anchors = 3
"""Every heading down to this level is an anchor, spelled as GitHub spells it."""
myst_url_schemes = {"http": None, "https": None, "mailto": None, "page": "{{path}}"}
"""`page:sick.html` is an example page, which lies at the root of the site as `html_extra_path` puts it there."""
