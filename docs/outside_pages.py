"""Takes Markdown from outside docs/ into the site at build time, and leads links there: reports/*.md and two more."""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from audit_pages import write_if_changed

from efprof.runner import find_audits

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MEASURED = "measured"
_LINK = re.compile(r"\]\((?!\w+:)(/?[^)#\s]+)(#[^)\s]*)?\)")


def setup(app: Any) -> dict[str, bool]:
    """For Sphinx."""
    app.connect("builder-inited", lambda _: write_pages())
    app.connect("source-read", _lead_links)
    return {"parallel_read_safe": True}


def places() -> dict[str, str]:
    """From a Markdown file of the repository to its page in the site."""
    reports = {f"reports/{path.name}": f"{MEASURED}/{path.name}" for path in sorted((ROOT / "reports").glob("*.md"))}
    return {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", **reports}


def write_pages() -> None:
    """A page for each file, and a list of what was measured."""
    for source, page in places().items():
        write_if_changed(DOCS / page, lead_links((ROOT / source).read_text(), str(PurePosixPath(source).parent)))
    examples = [f"- <a href='../{page.name}'>{page.stem}</a>" for page in sorted((ROOT / "reports").glob("*.html"))]
    listed = ["Pages that efprof wrote of the demo's runs:\n", *examples, ""] if examples else []
    tree = ["```{toctree}", ":glob:", "", "*", "```", ""]
    about = "Each table says at which commit and on which machine it was made; `make` lists the commands.\n"
    write_if_changed(DOCS / MEASURED / "index.md", "\n".join(["# What was measured\n", about, *listed, *tree]))


def lead_links(text: str, folder: str) -> str:
    """Links of a file in that folder of the repository; those that lead to a page, from the root of the site."""
    known = places()

    def led(link: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(folder, link[1]))
        if target.startswith("reports/") and target.endswith(".html"):
            return f"](page:{PurePosixPath(target).name})"
        inside = target.removeprefix("docs/") if target.startswith("docs/") else known.get(target)
        return f"](/{inside}{link[2] or ''})" if inside else link[0]

    return _LINK.sub(led, text)


def _lead_links(app: Any, name: str, source: list[str]) -> None:
    """Also from every audit that a page names, to its page."""
    del app
    if name not in (page.removesuffix(".md") for page in places().values()):
        source[0] = lead_links(source[0], str(PurePosixPath("docs", name).parent))
    audits = "|".join(find_audits())
    source[0] = re.sub(rf"(?<![\[`\w.])`({audits})`(?![\]`])", r"[`\1`](/audits/\1.md)", source[0])
