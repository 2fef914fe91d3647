"""What is of one wheel is no setting of a gateway over a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotwheel.gateway.settings import GatewaySettings
from slotwheel.wheel.errors import InvalidConfiguration


@pytest.mark.parametrize("setting", [{"data": Path("data")}, {"audit": True}])
def test_what_is_of_one_wheel_is_refused(setting: dict[str, Any]) -> None:
    """Sums of the gateway's messages would go to a node that no wheel of the fleet may have."""
    [name] = setting
    with pytest.raises(InvalidConfiguration) as error:
        GatewaySettings(fleet=Path("fleet.toml"), **setting)
    assert error.value.got == f"--fleet and --{name}"
    assert error.value.remedy
