"""What a view costs on the links: the bytes that its fragments have sent, and its part of them.

Fragments are shared, so bytes are those of fragments: the part of a view is an equal share among the views that use
each. Roles count what they have sent since their process started, and write it with their status; every link on the
way counts, so what a relay sends on is counted again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from catchment.deploy.reports.role_status import ProjectStatus, read_project_status
from catchment.deploy.store import DeploymentStore
from catchment.optimizer.sharing.deployed import Deployed
from catchment.project.config import Project


def view_traffic(project: Project, view: str) -> dict[str, Any] | None:
    """Return what the fragments of a view have sent over all links; None where the view is not deployed."""
    deployed = DeploymentStore(project.state_folder).read()
    parts = () if deployed is None else deployed.parts(deployed.query_name(view))
    if deployed is None or not parts:
        return None
    sent = _sent_by_role(read_project_status(project))
    names = dict.fromkeys(deployed.derivation(part).fragment for part in parts)
    fragments = [_describe(deployed, name, parts, sent) for name in names]
    return {
        "bytes": sum(f["bytes"] for f in fragments),
        "own_bytes": sum(f["own_bytes"] for f in fragments),
        "fragments": fragments,
    }


def _describe(
    deployed: Deployed, fragment: str, parts: tuple[str, ...], sent: Mapping[str, Counter[str]]
) -> dict[str, Any]:
    users = deployed.sharing.users(fragment)
    by_role = {role: counts[fragment] for role, counts in sent.items() if counts[fragment]}
    total = sum(by_role.values())
    return {
        "fragment": fragment,
        "bytes": total,
        "own_bytes": total * len([u for u in users if u in parts]) / len(users),
        "shared_with": [u for u in users if u not in parts],
        "bytes_by_role": by_role,
    }


def _sent_by_role(status: ProjectStatus) -> dict[str, Counter[str]]:
    """Return the bytes that each site and each relay has sent, by fragment."""
    roles = {**status.sites, **{f"relay {name}": role for name, role in status.relays.items()}}
    return {name: Counter(role.told.get("bytes_by_fragment", {})) for name, role in roles.items()}
