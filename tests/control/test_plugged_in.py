"""Policies, selectors and windows of the user's own: from a file, a module or an entry point, or refused."""

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from serfer.control.policies import POLICIES, make_policy, serves_alone
from serfer.control.scenario import Market
from serfer.control.selection import Catalogue, InfaasSelector, States, make_selector
from serfer.control.windows import Windows, window_policies
from serfer.control.windows.histograms import STANDARD
from serfer.core.errors import InputError, UsageError
from serfer.core.variants import Objectives, Place
from tests.control.selection.worlds import variant
from tests.control.worlds import fleet, scenario, seen

POLICY = """
import mine_count
from serfer.control.dispatch import Batching
from serfer.control.policy import InstanceCount, ProvisioningPlan, on_demand
from serfer.control.scenario import Market

class Mine:
    name = "mine"
    def __init__(self, scenario):
        self.kind = scenario.instance
    def observe(self, seen):
        return {plan}
    def resume(self, fleet):
        pass
"""


@pytest.fixture
def made(tmp_path):
    def write(plan="on_demand(self.kind, mine_count.COUNT, 'mine')", text=POLICY):
        (tmp_path / "mine_count.py").write_text("COUNT = 3\n")
        path = tmp_path / "mine.py"
        path.write_text(text.replace("{plan}", plan))
        return f"{path}:Mine"

    return write


def plugged(monkeypatch, group, *entries):
    mine = EntryPoints([EntryPoint(name, value, group) for name, value in entries])
    monkeypatch.setattr("serfer.plug_ins.entry_points", lambda group: mine.select(group=group))


def test_a_file_of_the_users_own_has_a_policy_and_may_import_its_neighbours(made):
    name = made()
    policy = make_policy(name, scenario())
    policy.resume(fleet(1))
    assert policy.name == name
    assert policy.observe(seen(1.0, 5.0)).total == 3
    assert not hasattr(policy, "dispatcher")
    dispatching = POLICY + "    def dispatcher(self):\n        return 'a dispatcher'\n"
    assert make_policy(made(text=dispatching), scenario()).dispatcher() == "a dispatcher"


SETTINGS = POLICY.replace(
    "class Mine:",
    """from dataclasses import dataclass

@dataclass(frozen=True)
class Options:
    count: int = 2
    mood: str = "calm"

class Mine:
    alone = True
    options = Options()""",
).replace("(self, scenario):", "(self, scenario, options):\n        self.options = options")


@pytest.mark.parametrize(("settings", "count"), [("", 2), (":count=7", 7), (":mood=wild,count=1", 1)])
def test_class_has_settings_behind_its_name(made, settings, count):
    name = made("on_demand(self.kind, self.options.count, self.options.mood)", SETTINGS) + settings
    policy = make_policy(name, scenario())
    assert policy.observe(seen(1.0, 5.0)).total == count
    assert (policy.name, serves_alone(policy)) == (name, True)


def test_wrong_setting_is_refused(made):
    with pytest.raises(UsageError, match="no parameter 'size': it has count, mood"):
        make_policy(f"{made(text=SETTINGS)}:size=1", scenario())
    with pytest.raises(UsageError, match="policy ski-rental:a=1 has no settings"):
        make_policy("ski-rental:a=1", scenario())


def test_purchases_that_are_no_types_and_markets_are_refused(made):
    wrong = POLICY + "    def purchases(self):\n        return ['gpu']\n"
    with pytest.raises(InputError, match="purchases returned \\['gpu'\\], not a list of"):
        make_policy(made(text=wrong), scenario()).purchases()


def test_a_plan_may_list_a_type_once_for_each_batch_size(made):
    groups = ", ".join(f"InstanceCount('gpu', Market.ON_DEMAND, 1, {batch})" for batch in (8, 2))
    plan = make_policy(made(f"ProvisioningPlan(({groups}), 'x')"), scenario()).observe(seen(1.0, 5.0))
    assert plan.batches("gpu", Market.ON_DEMAND) == [8, 2]
    assert plan.counts() == {("gpu", Market.ON_DEMAND): 2}


def test_a_policy_is_plugged_in_by_its_entry_point(monkeypatch):
    plugged(
        monkeypatch,
        "serfer.policies",
        ("mine", "serfer.control.policies.fixed:Instances"),
        ("serverless", "nowhere:Nothing"),
    )
    assert make_policy("mine", scenario()).observe(seen(1.0, 0.0)).total == 1
    assert make_policy("serverless", scenario()).observe(seen(1.0, 9.0)).total == 0  # a built-in name stays what it is
    plugged(monkeypatch, "serfer.policies", ("mine", "my_policy:Mine"))
    with pytest.raises(UsageError, match=r"mine \(serfer.policies\) cannot be loaded from 'my_policy:Mine'.*No module"):
        make_policy("mine", scenario())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import no_such_thing_here", "No module named 'no_such_thing_here'"),
        ("Other = 3", "mine.py defines no 'Mine'"),
        ("def Mine(scenario): return None", "function is not a class"),
        ("class Mine: pass", "no observe and no resume"),
        ("class Mine:\n def observe(self, seen): ...", "no resume"),
        (POLICY.replace("self.kind = scenario.instance", "1 / 0"), "could not be made: ZeroDivisionError"),
        (POLICY.replace("(self, scenario)", "(self)"), "could not be made: TypeError"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_line(made, text, words):
    with pytest.raises(UsageError, match=re.escape(words)) as raised:
        make_policy(made(text=text), scenario())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Mine", "no_such_module.py:NAME"),
        ("none.py:Mine", "none.py is not a Python file"),
        (":Mine", "cannot be loaded"),
        ("serfer.control.policies.fixed:", "cannot be loaded"),
    ],
)
def test_what_is_not_there_is_named(name, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        make_policy(name, scenario())


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("3", "int, not a ProvisioningPlan"),
        ("None", "NoneType, not a ProvisioningPlan"),
        ("1 / 0", "observe failed: ZeroDivisionError"),
        ("ProvisioningPlan([], 'x')", "tuple of InstanceCount"),
        ("ProvisioningPlan((3,), 'x')", "tuple of InstanceCount"),
        ("ProvisioningPlan((InstanceCount('cpu', Market.ON_DEMAND, 1),), 'x')", "'cpu'"),
        ("ProvisioningPlan((InstanceCount('gpu', 'soon', 1),), 'x')", "'soon'"),
        ("on_demand(self.kind, -1, 'x')", "-1 instances"),
        ("on_demand(self.kind, 1.5, 'x')", "1.5 instances"),
        ("on_demand(self.kind, 10**9, 'x')", "1000000000 instances"),
        ("ProvisioningPlan((), 'x', warm=-2)", "-2 warm environments"),
        ("ProvisioningPlan((InstanceCount('gpu', Market.SPOT, 1),) * 2, 'x')", "twice"),
        ("ProvisioningPlan((InstanceCount('gpu', Market.ON_DEMAND, 1, -8),), 'x')", "batches of -8 images"),
        ("ProvisioningPlan((), 'x', batching={'gpu': Batching(2.5)})", "batches of 2.5 images"),
        ("ProvisioningPlan((), 'x', batching={'gpu': 4})", "whose batching is {'gpu': 4}"),
        ("ProvisioningPlan((), 'x', batching=[Batching(4)])", "whose batching is [Batching"),
        ("ProvisioningPlan((), 'x', batching={'gpu': Batching(4, '1')})", "window_s of seconds"),
        ("on_demand(self.kind, 1, 'x\\ny')", "reason"),
        ("on_demand(self.kind, 1, None)", "reason"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anybody_acts_on_it(made, plan, words):
    policy = make_policy(made(plan), scenario())
    with pytest.raises(InputError, match=re.escape(words)):
        policy.observe(seen(1.0, 5.0))


def test_no_name_of_a_built_in_policy_means_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ski-rental.py").write_text("raise RuntimeError")
    assert all(":" not in name for name in POLICIES)
    assert make_policy("ski-rental", scenario()).name == "ski-rental"


SELECTOR = """
from serfer.core.variants import Selection, SelectionReason

class Mine:
    def get_variant(self, asked, catalogue, states, draw):
        return {plan}
"""
FIRST = "Selection(catalogue.rows[0].name, SelectionReason.ACTIVE)"
CATALOGUE = Catalogue([variant("a", kind="", place=Place.FUNCTIONS)])


def select(selector):
    return selector.get_variant(Objectives(), CATALOGUE, States({}), 0.0)


def test_a_selector_is_built_in_of_a_file_or_plugged_in_by_its_entry_point(made, monkeypatch):
    plugged(monkeypatch, "serfer.selectors", ("mine", "serfer.control.selection:InfaasSelector"))
    assert isinstance(make_selector("infaas"), InfaasSelector)
    assert select(make_selector(made(FIRST, SELECTOR))).variant == select(make_selector("mine")).variant == "a"
    with pytest.raises(UsageError, match=r"no selector 'yours': there are infaas, mine, and MODULE:Class"):
        make_selector("yours")
    with pytest.raises(UsageError, match="the class has no get_variant"):
        make_selector(made(text="class Mine: pass"))


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("None", "returned NoneType, not a Selection"),
        ("Selection('b', SelectionReason.ACTIVE)", "returned variant 'b', which the catalogue has not"),
        ("Selection('a', 'because')", "returned the reason 'because', not a SelectionReason"),
        ("Selection('a', SelectionReason.ACTIVE, place=3)", "returned a place that is not a short text"),
        ("Selection('a', SelectionReason.ACTIVE, missed=None)", "returned what it misses as NoneType"),
        ("1 / 0", "get_variant failed: ZeroDivisionError"),
    ],
)
def test_a_selection_that_cannot_be_is_an_error_that_names_the_selector(made, selection, words):
    with pytest.raises(InputError, match=words):
        select(make_selector(made(selection, SELECTOR)))


def test_a_query_s_own_mistake_stays_one(made):
    with pytest.raises(UsageError, match="no variant 'c'"):
        select(make_selector(made("catalogue.named('c')", SELECTOR)))


WINDOWS = """
from serfer.control.windows import Windows

class Mine:
    def observe(self, now_s, idle_s):
        if idle_s > 1000:
            raise RuntimeError("too long")

    def windows(self, now_s):
        return Windows({plan}, 10.0)
"""


def test_windows_of_ones_own_are_used_and_checked(made):
    policy = window_policies(made("5.0", WINDOWS))()
    assert policy.windows(0.0) == Windows(5.0, 10.0)
    with pytest.raises(InputError, match="observe failed"):
        policy.observe(0.0, 2000.0)
    with pytest.raises(InputError, match="not Windows"):
        window_policies(made("float('nan')", WINDOWS))().windows(0.0)
    with pytest.raises(UsageError, match="no windows"):
        window_policies(made(text=WINDOWS.replace("def windows", "def others")))


def test_an_entry_point_gives_windows_a_name(monkeypatch):
    plugged(monkeypatch, "serfer.windows", ("mine", "serfer.control.windows.histograms:HybridHistogram"))
    policy = window_policies("mine")()
    assert (policy.name, policy.windows(0.0)) == ("mine", STANDARD)
    with pytest.raises(UsageError, match="there are lsth, hybrid, mine, seconds, and MODULE:Class"):
        window_policies("yours")
