"""What `serfer doctor --aws` has found of accounts' quotas: a file in the cache, for `split`, `package` and `cost`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import InputError, UnavailableError
from serfer.files import locked, read_text, write_whole
from serfer.settings import Settings, aws_region, load_settings

FILE = "accounts.json"
_MOST_BYTES = 1 << 20
_Found = dict[str, dict[str, dict[str, int | str]]]  # by region, then account, the one that was looked at last behind


def remember(cache: Path, region: str, account: str, quotas: AccountQuotas, date: str) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f".{FILE}.lock"):
            found = _read(cache / FILE)
            accounts = found.setdefault(region, {})
            accounts.pop(account, None)
            accounts[account] = {"memory_mb": quotas.memory_mb, "concurrency": quotas.concurrency, "date": date}
            write_whole(cache / FILE, json.dumps(found, indent=1).encode())
    except OSError as error:
        raise InputError(f"{cache / FILE} cannot be written: {error.strerror}") from error


def quotas_for(settings: Settings, given: str | None, region: str | None = None) -> AccountQuotas:
    """Return the quotas to plan for: by `account` or SERFER_ACCOUNT, SERFER_AWS_FILE, as found in the region, or new.

    Raises UsageError for an `account` that says nothing.
    """
    facts = settings.facts()
    if given := given or settings.account:
        return AccountQuotas.parse(given, facts)
    return AccountQuotas.of_user(facts) or _found(settings, region, facts) or AccountQuotas.new(facts)


def account_facts(given: str | None = None, region: str | None = None) -> tuple[AccountQuotas, AwsFacts]:
    """Return the quotas to price for, and AWS's facts with as many environments at once; any memory can be priced."""
    settings = load_settings()
    quotas, facts = quotas_for(settings, given, region), settings.facts()
    return quotas, replace(facts, functions=replace(facts.functions, concurrency=quotas.concurrency))


def _found(settings: Settings, region: str | None, facts: AwsFacts) -> AccountQuotas | None:
    known = _read(settings.cache_dir / FILE)
    if not known:
        return None
    try:
        region = region or aws_region() or "us-east-1"
    except UnavailableError:  # a wrong AWS_PROFILE is no obstacle to a plan
        return None
    for account, kept in reversed(known.get(region, {}).items()):
        memory_mb, concurrency = kept.get("memory_mb"), kept.get("concurrency")
        if isinstance(memory_mb, int) and isinstance(concurrency, int) and min(memory_mb, concurrency) > 0:
            known_by = f"{account} in {region}, found by serfer doctor --aws on {kept.get('date')}"
            return AccountQuotas(min(memory_mb, facts.functions.memory_max), concurrency, known_by)
    return None


def _read(file: Path) -> _Found:
    try:
        found = json.loads(read_text(file, _MOST_BYTES))
    except (InputError, ValueError):
        return {}
    sound = isinstance(found, dict) and all(
        isinstance(accounts, dict) and all(isinstance(kept, dict) for kept in accounts.values())
        for accounts in found.values()
    )
    return found if sound else {}
