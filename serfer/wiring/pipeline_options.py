"""Options of commands that open a pipeline: its store, workers, stack and engine."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.core.options import Options, option


@dataclass(frozen=True, kw_only=True)
class PipelineOptions(Options):
    """Where a plan's functions run, what they hand pieces on by, and what drives them."""

    store: str | None = option(
        None,
        "A store's URL: redis://, s3://, file:///, ... (docs/reference/stores.md); by default the stack's, or a new "
        "one.",
        setting="store",
    )
    workers: str | None = option(
        None,
        "local: the local Lambda service, a process for each environment; inprocess: threads here; aws: the plan's "
        "functions as deployed.",
        setting="workers",
        shown="inprocess for plans of one task, local for others, aws with --stack",
    )
    stack: str | None = option(
        None,
        "The stack of a deployment (serfer deploy package): it says where its functions, store and state machine are.",
        metavar="NAME",
        setting="stack",
    )
    object_store: str | None = option(
        None, "A second store's URL, for the stages that the plan sends to S3.", setting="object_store"
    )
    engine: str = option(
        "push",
        "push: an invoke's own return says that a tile is done; poll: events, and looks into the store; "
        "stepfunctions or stepfunctions-express: a state machine (docs/reference/engines.md).",
        setting="engine",
    )

    def check_workers(self) -> None:
        """Refuse workers that were chosen, and lack what they need, before a network is read; raises UsageError."""
        from serfer.wiring.options import Choices, workers_of  # noqa: PLC0415 - the command line starts fast

        if self.workers or self.stack:
            workers = workers_of(self.workers, self.stack)
            Choices(self.store, workers, self.engine, self.object_store, stack=self.stack).check()
