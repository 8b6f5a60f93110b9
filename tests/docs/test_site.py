"""The documentation site: it builds without warnings, has no dead link, and can be read by everyone on any screen."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.dashboard.browsing import chromium, watched_page

ROOT = Path(__file__).parents[2]
# One page of each form: prose, a long table, code, generated pages.
LOOKED_AT = ("index.html", "tutorial.html", "workers.html", "features.html", "reference/options.html")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The site on loopback."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


class Links(HTMLParser):
    """The targets of a page, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.has_next = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.targets.append(found["href"])
            self.has_next |= "md-footer__link--next" in found.get("class", "")
        if "src" in found or tag == "link":
            self.loaded.append(found.get("src", found.get("href", "")))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {
        path.resolve(): Links(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"
    }


@pytest.mark.timeout(300)
def test_no_link_is_dead_and_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Links]) -> None:
    dead = []
    for page, found in pages.items():
        assert [one for one in found.loaded if "//" in one] == [], page
        for target in found.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            known = pages[path].anchors if path in pages else {""}
            if not path.exists() or (parts.fragment and unquote(parts.fragment) not in known):
                dead.append(f"{page.relative_to(site.resolve())} → {target}")
    assert len(pages) > 40
    assert dead == []


def test_links_into_the_repository_name_files_that_exist(pages: dict[Path, Links]) -> None:
    inside = re.compile(r"https://github\.com/toril-queue/toril/(?:blob|tree)/main/([^#]+)")
    named = {found[1] for page in pages.values() for one in page.targets if (found := inside.match(one))}
    assert named
    assert [one for one in named if not (ROOT / one).exists()] == []


def test_every_page_leads_to_the_next(pages: dict[Path, Links]) -> None:
    without = sorted(path.name for path, found in pages.items() if not found.has_next)
    last_and_outside = [name for name in without if not re.match(r"0\d{3}-|releasing", name)]
    assert last_and_outside == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_begins_with_what_it_is_for(path: Path) -> None:
    title, _, rest = path.read_text().partition("\n")
    assert title.startswith("# ")
    assert re.match(r"\n[^\s#|!>\-]", rest) and not rest.startswith("\n```"), rest[:80]


def test_the_reference_has_every_public_name_command_and_option(site: Path) -> None:
    import toril
    from toril.protocol.worker_options import WorkerOptions

    python, commands, options = (
        (site / f"reference/{name}.html").read_text() for name in ("python", "commands", "options")
    )
    assert [name for name in toril.__all__ if name != "sync" and f"toril.{name}</code>" not in python] == []
    assert "toril pipeline run</code>" in commands and "--stalled-check-interval</code>" in commands
    fields = [name for name in WorkerOptions.__dataclass_fields__ if not name.startswith("_")]
    assert [name for name in fields if f"<code>{name}</code>" not in options] == []


def test_the_search_knows_the_pages(site: Path) -> None:
    found = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert {"tutorial.html", "reference/python.html"} <= {one["location"].partition("#")[0] for one in found}


@pytest.mark.timeout(300)
async def test_pages_are_accessible_and_legible_at_390_pixels(address: str, pages: dict[Path, Links]) -> None:
    async with chromium() as browser:
        for scheme, width in (("light", 1280), ("dark", 390)):
            view = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
            async with watched_page(browser, address, **view) as tab:
                for path in LOOKED_AT:
                    await tab.open(path)
                    assert await tab.barriers() == [], (path, scheme)
                    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= width, path
