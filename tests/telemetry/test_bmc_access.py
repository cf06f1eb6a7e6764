"""Where the BMCs answer: by pattern, by host list, one by one."""

from __future__ import annotations

import pytest

from hpcverify.errors import ConfigError
from hpcverify.plan.config import Bmcs
from hpcverify.telemetry.redfish.access import find_addresses

NODES = ("n1", "n2", "n3")


def find(**table: object) -> dict[str, str]:
    return find_addresses(NODES, Bmcs(**table), "site.toml")  # type: ignore[arg-type]


def test_one_pattern_is_for_all_nodes_and_a_list_goes_before_it() -> None:
    found = find(
        address="{node}-bmc:8443",
        addresses={"n[2-3]": "10.0.0.[12-13]", "n9": "{node}.mgmt"},
    )

    assert found == {"n1": "n1-bmc:8443", "n2": "10.0.0.12", "n3": "10.0.0.13"}


def test_a_node_without_an_address_is_left_out() -> None:
    assert find(addresses={"n2": "[2001:db8::2]:443"}) == {"n2": "[2001:db8::2]:443"}
    ports = find(addresses={"n[2-3]": "10.0.0.[12-13]:8443"})
    assert ports == {"n2": "10.0.0.12:8443", "n3": "10.0.0.13:8443"}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"addresses": {"n[1-3]": "b[1-2]"}}, "'n[1-3]' is 3 nodes, but 'b[1-2]' is 2 addresses"),
        ({"addresses": {"n[1-": "{node}"}}, "'n[1-' is not a list of nodes"),
        ({"address": "https://{node}"}, "'https://n1', for node n1, is not an address"),
        ({"address": "{node}/redfish"}, "is not an address"),
        ({"address": "me@{node}"}, "is not an address"),
    ],
)
def test_what_cannot_be_an_address_is_refused(table: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find(**table)

    assert told in str(caught.value)
