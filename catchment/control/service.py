"""The control service of a center: it answers people's commands and tells sites what is deployed.

It stands beside the inbox, at the same address and with the same proofs. Roles decide: readers look, operators also
change, sites follow and report under their own name only. A command is run by the very functions that the command line
calls at the center, so nothing can be done over the wire that cannot be done there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from catchment.control.bundle import Bundle
from catchment.control.commands import run_command
from catchment.control.protocol import COMMAND, FOLLOW, PREFIX, PROTOCOL, read_request, write_answer, write_error
from catchment.control.reports import forget_taken, keep_report, read_requests
from catchment.deploy.deployment import Deployment
from catchment.errors import CatchmentError, WireError
from catchment.keys.tokens import SITE, Caller
from catchment.project.config import Project

_log = logging.getLogger(__name__)


class ControlService:
    """Answers the two calls of the protocol; may be used from any thread."""

    prefix = PREFIX
    streams: frozenset[str] = frozenset()

    def __init__(self, project: Project, protocol: int = PROTOCOL) -> None:
        self._project = project
        self._protocol = protocol
        self._bundle: Bundle | None = None
        self._reports = threading.Lock()

    def publish(self, deployment: Deployment) -> None:
        """Let sites follow a deployment, which the center has reached."""
        self._bundle = Bundle.of(deployment)

    def answer(self, call: str, data: bytes, caller: Caller) -> bytes:
        """Answer a call; an error of the caller, or a mistake in what it asks for, is an answer too."""
        try:
            request = read_request(data, self._protocol)
            if call == COMMAND:
                return write_answer(self._run(request, caller))
            if call == FOLLOW:
                return write_answer(self._follow(request, caller))
            raise WireError(f"there is no call {call!r:.80}")
        except CatchmentError as error:
            return write_error(error)

    def _run(self, request: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
        arguments = request.get("arguments", {})
        if not isinstance(arguments, dict):
            raise WireError("the arguments of a command are not a map")
        return run_command(self._project.folder, str(request.get("command")), arguments, caller)

    def _follow(self, request: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
        if caller.role != SITE:
            raise WireError(f"{caller.name!r} has the role {caller.role}, and only sites follow")
        folder = self._project.site_folder(caller.name)
        with self._reports:
            self._keep(request, caller.name)
        bundle = self._bundle
        holds = request.get("holds")
        is_new = bundle is not None and bundle.digest != holds
        return {
            "bundle": bundle.to_message() if bundle is not None and is_new else None,
            "requests": read_requests(folder),
        }

    def _keep(self, request: Mapping[str, Any], site: str) -> None:
        if not _is_safe_name(site):
            raise WireError(f"{site!r:.80} cannot be the name of a site")
        forget_taken(self._project.site_folder(site), request.get("taken"))
        report = request.get("report")
        if isinstance(report, dict):
            keep_report(self._project, site, report)


def _is_safe_name(name: str) -> bool:
    """Return whether a name can be that of a folder; names in tokens and certificates are made by people."""
    from catchment.project.option_kinds import site_name

    with suppress(ValueError):
        return bool(site_name().read(name))
    return False
