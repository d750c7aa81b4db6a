"""A small interpreter of the Amazon States Language: as much of it as compiled plans use, after its specification.

Iterations of a Map run one after the other in an order that `chance` draws, which is one of the orders that AWS may
take; where one fails, the rest never runs. It waits for nothing: `waits` holds the seconds it would have slept.
"""

import json
import random
from datetime import UTC, datetime, timedelta

NO_RETRIER = {"States.Runtime", "States.DataLimitExceeded"}  # States.ALL does not match these


class StateError(Exception):
    def __init__(self, name, cause=""):
        super().__init__(name, cause)
        self.name, self.cause = name, cause


class Machine:
    """Runs a definition; `invoke(function, payload)` answers or raises StateError."""

    def __init__(self, definition, invoke, seed=0):
        self.definition, self.invoke = definition, invoke
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.waits, self.names = [], []
        self.ticks = 0

    def run(self, value):
        """Return the output of an execution, or raise the error that it fails with."""
        context = {"Execution": {"Input": value}}
        return self._states(self.definition, value, context)

    def now(self):
        self.ticks += 1
        time = datetime(2026, 11, 21, tzinfo=UTC) + timedelta(milliseconds=self.ticks)
        return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _states(self, machine, value, context):
        name = machine["StartAt"]
        while True:
            state = machine["States"][name]
            self.names.append(name)
            context = {**context, "State": {"Name": name, "EnteredTime": self.now(), "RetryCount": 0}}
            value, name = getattr(self, "_" + state["Type"].lower())(state, value, context)
            if name is None:
                return value

    def _pass(self, state, value, context):
        result = state.get("Result", value)
        if "Parameters" in state:
            result = fill(state["Parameters"], value, context)
        return placed(state, value, result), after(state)

    def _succeed(self, _state, value, _context):
        return value, None

    def _fail(self, state, value, context):
        raise StateError(read(state["ErrorPath"], value, context), read(state["CausePath"], value, context))

    def _task(self, state, value, context):
        assert state["Resource"] == "arn:aws:states:::lambda:invoke"
        counts = [0] * len(state.get("Retry", []))
        while True:
            context["State"]["RetryCount"] = sum(counts)
            given = fill(state["Parameters"], value, context)
            try:
                result = {"StatusCode": 200, "Payload": self.invoke(given["FunctionName"], given["Payload"])}
            except StateError as error:
                if not self._retries(state, error, counts):
                    return self._caught(state, value, error)
                continue
            if "ResultSelector" in state:
                result = fill(state["ResultSelector"], result, context)
            return placed(state, value, result), after(state)

    def _retries(self, state, error, counts):
        for number, retrier in enumerate(state.get("Retry", [])):
            if matches(retrier, error):
                if counts[number] >= retrier["MaxAttempts"]:
                    return False
                wait = retrier["IntervalSeconds"] * retrier["BackoffRate"] ** counts[number]
                assert retrier["MaxDelaySeconds"] > retrier["IntervalSeconds"] >= 1
                self.waits.append(min(wait, retrier["MaxDelaySeconds"]))
                counts[number] += 1
                return True
        return False

    def _caught(self, state, value, error):
        for catcher in state.get("Catch", []):
            if matches(catcher, error):
                return placed(catcher, value, {"Error": error.name, "Cause": error.cause}), catcher["Next"]
        raise error

    def _map(self, state, value, context):
        items = read(state["ItemsPath"], value, context)
        assert isinstance(items, list)
        assert len(items) <= state["MaxConcurrency"] <= 40
        results, order = [None] * len(items), list(range(len(items)))
        self.chance.shuffle(order)
        try:
            for number in order:
                inner = {**context, "Map": {"Item": {"Index": number, "Value": items[number]}}}
                item = fill(state["ItemSelector"], value, inner)
                results[number] = self._states(state["ItemProcessor"], item, context)
        except StateError as error:
            return self._caught(state, value, error)
        return placed(state, value, results), after(state)


def after(state):
    assert ("Next" in state) != state.get("End", False)
    return state.get("Next")


def matches(rule, error):
    return error.name in rule["ErrorEquals"] or (rule["ErrorEquals"] == ["States.ALL"] and error.name not in NO_RETRIER)


def placed(state, value, result):
    path = state.get("ResultPath", "$")
    if path is None:
        return value
    if path == "$":
        return result
    first, *rest = path.removeprefix("$.").split(".")
    below = f"$.{rest[0]}" if rest else "$"
    return {**value, first: placed({"ResultPath": below}, value.get(first, {}), result)}


def fill(template, value, context):
    if isinstance(template, dict):
        return {
            name.removesuffix(".$"): read(inner, value, context) if name.endswith(".$") else fill(inner, value, context)
            for name, inner in template.items()
        }
    return template


def read(path, value, context):
    """Evaluate a reference path or an intrinsic function; what is not there fails, as in AWS."""
    if path.startswith("States."):
        return intrinsic(path, value, context)
    value = context if path.startswith("$$") else value
    for name in path.lstrip("$").removeprefix(".").split("."):
        if name:
            if name not in value:
                raise StateError("States.Runtime", f"{path} is not there")
            value = value[name]
    return value


def intrinsic(text, value, context):
    name, _, rest = text.partition("(")
    arguments = [argument(part.strip(), value, context) for part in split(rest.removesuffix(")"))]
    if name == "States.JsonToString":
        return json.dumps(arguments[0], separators=(",", ":"))
    assert name == "States.Format"
    form, *parts = arguments
    assert form.count("{}") == len(parts)
    for part in parts:
        form = form.replace("{}", "\0" + (part if isinstance(part, str) else json.dumps(part)).replace("{}", "\1"), 1)
    return form.replace("\0", "").replace("\1", "{}")


def argument(text, value, context):
    return text[1:-1] if text.startswith("'") else read(text, value, context)


def split(text):
    """Cut arguments at the commas that stand in no string and no call."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == "'"
        depth += 0 if quoted else (char == "(") - (char == ")")
        if char == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts
