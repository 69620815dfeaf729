"""docs/subscriptions.md says of decisions and settings what the code does.

Rules of docs/contract.md: R12.6.
"""

import re
from pathlib import Path

from oncegate import Action, DeliveryDecision, SubscriptionSettings

PAGE = (Path(__file__).parents[2] / "docs" / "subscriptions.md").read_text("utf-8")


def test_the_table_of_decisions_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (\(execute it first\)|acknowledge|redeliver|dead-letter) \|", PAGE, re.M)
    shown = {name: Action.RUN if action.startswith("(") else Action(action) for name, action in rows}
    assert shown == {decision.value: decision.action for decision in DeliveryDecision}


def test_the_table_of_settings_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .* \|$", PAGE.partition("## Settings")[2], re.M))
    fields = SubscriptionSettings.model_fields
    assert list(rows) == list(fields)
    for name, default in rows.items():
        if name != "heartbeat":
            shown = default.strip('`"')
            assert shown == str(fields[name].default), name
