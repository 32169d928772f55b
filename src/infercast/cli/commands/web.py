"""``infercast web``: a page to play with, and the same over HTTP."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from infercast.cli.options import with_options
from infercast.cli.outputs import Form, note, print_json
from infercast.errors import InputError, need
from infercast.forecast.option_table import own_options

MOST_WORKERS = 64


@with_options(own_options("web"))
def command(
    *, host: str, port: int, workers: int | None, allow_host: list[str], static: Path | None, form: Form, **_: Any
) -> None:
    if static is not None:
        write_static(static, form)
        return
    need("infercast web", "web")
    for option, names in (("--host", [host]), ("--allow-host", allow_host)):
        if not all(name.strip() for name in names):  # an empty address would be every network
            raise InputError(f"{option} must be an address or a name, not an empty text")
    if not 0 <= port <= 65535:
        raise InputError(f"--port must be from 0 to 65535, not {port}")
    number = min(4, os.cpu_count() or 1) if workers is None else workers
    if not 1 <= number <= MOST_WORKERS:
        raise InputError(f"--workers must be from 1 to {MOST_WORKERS}, not {number}")
    from infercast.web.server import serve  # noqa: PLC0415 - the packages of infercast[web] may be missing

    def tell(address: str) -> None:
        if form.is_data:
            print_json({"page": f"{address}/", "api": f"{address}/api/v1"})
            sys.stdout.flush()
        else:
            note(f"{address}/ is the page, {address}/api/v1 the API; Ctrl+C ends it")

    serve(host, port, workers=number, allowed=tuple(allow_host), tell=tell)


def write_static(folder: Path, form: Form) -> None:
    from infercast.web.static_site import build_twin  # noqa: PLC0415 - it loads all that answers

    size = build_twin(folder, note)
    if form.is_data:
        print_json({"folder": str(folder), "bytes": size})
    else:
        note(f"{folder} holds the page, {size / 1e6:.1f} MB; try it with: python -m http.server -d {folder}")
