"""`serfer result`: show, get and delete results, in a form that `serfer run --keep` has too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from serfer.cli.shared.display import byte_size, plain, print_table
from serfer.cli.shared.options import JsonOption, kept_url, print_json
from serfer.cli.shared.terminal import out
from serfer.core.keys import LOCAL_OWNER
from serfer.results import ResultManifest, Results, StoredResult
from serfer.settings import load_settings
from serfer.storage import open_store

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, help="Results that serfer run --keep has left."
)
KeptOption = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="URL",
        help="The store of results: file:///, redis://, s3://; by default a folder of the cache. [SERFER_RESULTS]",
    ),
]
_Id = Annotated[str, typer.Argument(metavar="ID", help="The result's id, 32 hex digits.")]


@app.command()
def show(result: _Id, results: KeptOption = None, as_json: JsonOption = False) -> None:
    """Print what a result holds, and when it expires."""
    with _found(result, results) as kept:
        if as_json:
            print_json(result_object(kept.manifest))
        else:
            print_result(kept.manifest)


@app.command()
def get(
    result: _Id,
    directory: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Where outputs are written; it is made if it is not there.")
    ],
    results: KeptOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
) -> None:
    """Write each output to FOLDER/ID.OUTPUT.npy, in bounded memory, each whole or not at all, and print the files."""
    with _found(result, results) as kept:
        for path in kept.save(directory, overwrite=overwrite):
            print(path)  # noqa: T201 - lines for other programs; a console would break them


@app.command()
def delete(result: _Id, results: KeptOption = None) -> None:
    """Delete a result before its lifetime has passed."""
    with _found(result, results) as kept:
        kept.delete()


@contextmanager
def _found(result: str, url: str | None) -> Iterator[StoredResult]:
    with open_store(kept_url(url, load_settings())) as store:
        results = Results(store)
        yield StoredResult(results, results.read(LOCAL_OWNER, result))


def result_object(manifest: ResultManifest) -> dict[str, Any]:
    return {
        "result": manifest.id,
        "model": manifest.model,
        "plan": manifest.plan,
        "created": manifest.created,
        "expires": manifest.expires,
        "outputs": [
            {"name": output.name, "shape": [*output.shape], "dtype": output.dtype, "bytes": output.nbytes}
            for output in manifest.outputs
        ],
    }


def print_result(manifest: ResultManifest) -> None:
    rows = [
        (made.name, "x".join(map(str, made.shape)), made.dtype, byte_size(made.nbytes)) for made in manifest.outputs
    ]
    print_table(["output", "shape", "type", "bytes"], rows)
    until = datetime.fromtimestamp(manifest.expires).astimezone()
    out.print(f"result {manifest.id} of {plain(manifest.model)}, until {until:%Y-%m-%d %H:%M %Z}", soft_wrap=True)
