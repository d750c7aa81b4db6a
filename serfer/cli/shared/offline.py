"""Options of commands that are offline jobs: what they yield to."""

from __future__ import annotations

from typing import Annotated

import typer

YieldToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--yield-to",
        metavar="URL",
        help="A running service, such as http://localhost:8000: while it has more online load than the next two "
        "options say, nothing new starts; may be repeated. Its API key is SERFER_YIELD_KEY.",
    ),
]
YieldUtilisationOption = Annotated[
    float, typer.Option(help="With --yield-to: the share in use of what answers its queries, above which to pause.")
]
YieldLatencyOption = Annotated[
    float, typer.Option(help="With --yield-to: latency of its queries over their profile, above which to pause.")
]
