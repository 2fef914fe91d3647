"""The diagram in docs/replication.md is the table in states.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slotwheel.replication.rules.states import TRANSITIONS, Role

PAGE = Path(__file__).parents[2] / "docs" / "replication.md"
MARKERS = re.compile(r"(<!-- states: .*? -->\n)(.*?)(<!-- end of states -->)", re.DOTALL)


def test_the_diagram_is_made_from_the_table() -> None:
    """SLOTWHEEL_WRITE_DOCS=1 writes it anew."""
    text = PAGE.read_text()
    assert len(MARKERS.findall(text)) == 1
    made = MARKERS.sub(lambda found: f"{found[1]}```mermaid\n{diagram()}```\n{found[3]}", text)
    if os.environ.get("SLOTWHEEL_WRITE_DOCS"):
        PAGE.write_text(made)
    assert made == text


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    reasons: dict[tuple[Role, Role], list[str]] = {}
    for (role, why), then in TRANSITIONS.items():
        reasons.setdefault((role, then), []).append(why.value)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{role.value}" as {_name(role)}' for role in Role]
    lines += [f"    [*] --> {_name(role)}: starts" for role in (Role.LEARNER, Role.STANDBY)]
    for (role, then), whys in reasons.items():
        lines.append(f"    {_name(role)} --> {_name(then)}: {'<br>'.join(whys)}")
    return "\n".join(lines) + "\n"


def _name(role: Role) -> str:
    return role.value.replace("-", "_")
