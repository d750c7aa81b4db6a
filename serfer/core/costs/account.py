"""What an AWS account lets Lambda functions have, and how that is known.

New accounts have less of both than the quotas that AWS documents, until AWS raises them by how an account is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError

NEW = "new"
DEFAULT = "default"
_MOST_CONCURRENCY = 10**6
_FIGURES = re.compile(r"(\d{1,6}),(\d{1,7})")
_QUOTAS = ("lambda.memory_max", "lambda.concurrency")


@dataclass(frozen=True)
class AccountQuotas:
    """The most MB of a function, the environments that may run at once, and how they are known, in words.

    `assumed`: they are not known.
    """

    memory_mb: int
    concurrency: int
    known_by: str
    assumed: bool = False

    @classmethod
    def new(cls, facts: AwsFacts) -> AccountQuotas:
        functions = facts.functions
        known_by = "assumed until serfer doctor --aws has looked or SERFER_ACCOUNT says otherwise"
        memory_mb = min(functions.memory_new_account, functions.memory_max)
        return cls(memory_mb, min(functions.concurrency_new_account, functions.concurrency), known_by, assumed=True)

    @classmethod
    def of_quotas(cls, facts: AwsFacts, known_by: str) -> AccountQuotas:
        return cls(facts.functions.memory_max, facts.functions.concurrency, known_by)

    @classmethod
    def of_user(cls, facts: AwsFacts) -> AccountQuotas | None:
        """Return the account that quotas of the user's own in SERFER_AWS_FILE describe, None where it has none."""
        own = any(name in facts.sources and facts.sources[name].tag == "U" for name in _QUOTAS)
        return cls.of_quotas(facts, "SERFER_AWS_FILE") if own else None

    @classmethod
    def parse(cls, text: str, facts: AwsFacts) -> AccountQuotas:
        """Read "new", "default" (all that AWS's documented quotas allow) or "MB,ENVIRONMENTS"; raises UsageError."""
        functions = facts.functions
        if text == NEW:
            return replace(cls.new(facts), known_by="account=new", assumed=False)
        if text == DEFAULT:
            return cls.of_quotas(facts, "account=default")
        match = _FIGURES.fullmatch(text)
        memory, concurrency = (int(match[1]), int(match[2])) if match else (0, 0)
        if not functions.memory_min <= memory <= functions.memory_max or not 1 <= concurrency <= _MOST_CONCURRENCY:
            raise UsageError(
                f"account is {NEW}, {DEFAULT}, or the most MB of a function ({functions.memory_min} to "
                f"{functions.memory_max}) and the environments at once, such as 3008,10; not {text!r}"
            )
        return cls(memory, concurrency, f"account={text}")

    @property
    def at_once(self) -> int:
        """Environments that a query's stages may take at once: the driver function takes one more."""
        return max(1, self.concurrency - 1)

    def within(self, facts: AwsFacts) -> AwsFacts:
        """Return the facts with the account's quotas in place of those that AWS documents."""
        functions = replace(facts.functions, memory_max=self.memory_mb, concurrency=self.concurrency)
        return replace(facts, functions=functions)

    def __str__(self) -> str:
        kind = "a new AWS account" if self.assumed else "an AWS account"
        many = "environments" if self.concurrency > 1 else "environment"
        return f"{kind} of {self.memory_mb:,} MB a function and {self.concurrency:,} {many} at once ({self.known_by})"
