"""URLs of stores around a store: `SCHEME://?store=PERCENT-ENCODED-URL&option=number`, open to every process."""

import math
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from serfer.core.errors import UsageError


def wrapped_url(scheme: str, store: str, options: Mapping[str, float | None]) -> str:
    """Build the URL of a wrapper around the store `store`; options that are None are left out."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    return f"{scheme}://?{urlencode({'store': store, **given})}"


def unwrapped(url: str, known: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """Return the inner URL and the options, each with the default of `known` where the URL does not give it.

    Raises:
        UsageError: there is no inner URL, or an option is unknown, given twice, or no number from zero on.
    """
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(pairs)
    store = given.pop("store", "")
    if parts.netloc or parts.path or parts.fragment or "://" not in store or len(given) != len(pairs) - 1:
        raise UsageError(
            f"--store {parts.scheme}:// must be {parts.scheme}://?store=PERCENT-ENCODED-URL and options, each once"
        )
    if given.keys() - known.keys():  # unnamed: it may be a part of an inner URL that is not percent-encoded
        raise UsageError(f"--store {parts.scheme}:// has an unknown option: use store, {', '.join(known)}")
    return store, {**known, **{name: _number(parts.scheme, name, text) for name, text in given.items()}}


def _number(scheme: str, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (0 <= number < math.inf):
        raise UsageError(f"--store {scheme}:// wants a number from zero on for {name}")
    return number
