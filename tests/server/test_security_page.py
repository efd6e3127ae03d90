"""The security page lists every route, and says truly which ones need the key."""

import re
from pathlib import Path

from outrider.cli.model_flags import ModelFlags
from outrider.cli.serve import ServerFlags
from outrider.server.auth import _is_open

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
ROUTES = re.findall(r"^\| (`/.*?) \| (yes|no) \|", PAGE, flags=re.MULTILINE)
NEEDS_KEY = {path: key for paths, key in ROUTES for path in re.findall("`(.*?)`", paths)}
HIDDEN = {"/", "/page/{name}", "/docs", "/redoc", "/openapi.json"}  # not in the schema


def test_the_page_lists_exactly_the_routes_of_the_server(server):
    paths = set(server.get("/openapi.json").json()["paths"])
    assert {path.replace("{name:path}", "{name}") for path in paths} | HIDDEN == set(NEEDS_KEY)
    for path in HIDDEN:
        assert server.get(path.format(name="chat.js")).status_code in (200, 404)


def test_the_page_says_which_routes_need_the_key():
    true = {path: "no" if _is_open(path) else "yes" for path in NEEDS_KEY}
    assert true == NEEDS_KEY
    assert set(NEEDS_KEY.values()) == {"yes", "no"}


def test_the_flags_of_the_page_exist():
    flags = re.findall(r"`--(\S+?)`", PAGE)
    names = [*ServerFlags.__dataclass_fields__, *ModelFlags.__dataclass_fields__]
    known = {name.replace("_", "-") for name in names}
    assert len(flags) > 8
    assert {flag.removeprefix("no-") for flag in flags} <= known | {"minutes"}
