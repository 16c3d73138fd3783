"""A network namespace for one site, joined to the rest by a cable (veth) that can be pulled out or throttled.

Processes in the namespace reach the campaign's proxies only over the cable: a forwarder there listens on its loopback.
Where namespaces are not permitted there is none, and the faults of the cable are left out and reported as such.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field

from tests.worlds.waiting import free_port


@dataclass
class NetworkNamespace:
    """The namespace and its forwarders."""

    name: str
    cable: str
    mark: str
    forwarders: list[subprocess.Popen[bytes]] = field(default_factory=list)
    closing: list[socket.socket] = field(default_factory=list)

    @classmethod
    def make(cls, mark: str) -> NetworkNamespace | None:
        """Make a namespace; None where that is not permitted."""
        if os.geteuid() != 0 or shutil.which("ip") is None:
            return None
        made = cls(f"catchment-{os.getpid()}", f"cm{os.getpid() % 1_000_000}", mark)
        steps = [
            ["ip", "netns", "add", made.name],
            ["ip", "link", "add", made.cable, "type", "veth", "peer", "name", "cable", "netns", made.name],
            ["ip", "addr", "add", f"{made.outside}/30", "dev", made.cable],
            ["ip", "link", "set", made.cable, "up"],
            [*made.prefix, "ip", "link", "set", "lo", "up"],
            [*made.prefix, "ip", "addr", "add", f"{made.inside}/30", "dev", "cable"],
            [*made.prefix, "ip", "link", "set", "cable", "up"],
        ]
        if all(_succeeds(step) for step in steps):
            return made
        made.close()
        return None

    @property
    def outside(self) -> str:
        """The address of the cable's end outside; campaigns of other processes have others."""
        return f"10.231.{os.getpid() // 64 % 256}.{os.getpid() % 64 * 4 + 1}"

    @property
    def inside(self) -> str:
        first, last = self.outside.rsplit(".", 1)
        return f"{first}.{int(last) + 1}"

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def lead_to(self, port: int) -> int:
        """Return a port inside that leads over the cable to a loopback port outside."""
        outside = socket.create_server((self.outside, 0))
        self.closing.append(outside)
        threading.Thread(target=forward, args=(outside, ("127.0.0.1", port)), daemon=True).start()
        inside = free_port()  # free outside; the namespace is empty, so it is free inside too
        target = f"{self.outside}:{outside.getsockname()[1]}"
        program = [*self.prefix, sys.executable, "-m", "tests.campaign.namespace", str(inside), target]
        self.forwarders.append(subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE))
        output = self.forwarders[-1].stdout
        assert output is not None
        output.readline()  # it listens
        return inside

    def pull(self) -> None:
        """Pull the cable out: nothing passes, and no connection is told."""
        _succeeds(["ip", "link", "set", self.cable, "down"])

    def plug(self) -> None:
        """Put the cable back in, without a limit."""
        _succeeds([*self.prefix, "tc", "qdisc", "del", "dev", "cable", "root"])
        _succeeds(["ip", "link", "set", self.cable, "up"])

    def throttle(self, kbit_per_s: int) -> bool:
        """Limit what the site sends by a token bucket; return whether the kernel can."""
        limit = ["tbf", "rate", f"{kbit_per_s}kbit", "burst", "1600", "latency", "800ms"]
        return _succeeds([*self.prefix, "tc", "qdisc", "replace", "dev", "cable", "root", *limit])

    def count_throttled(self) -> int:
        """Return how many packets the token bucket has held back."""
        asked = [*self.prefix, "tc", "-s", "-j", "qdisc", "show", "dev", "cable"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return sum(bucket.get("overlimits", 0) for bucket in json.loads(told or "[]"))

    def close(self) -> None:
        for forwarder in self.forwarders:
            forwarder.kill()
            forwarder.wait()
        for listener in self.closing:
            listener.close()
        _succeeds(["ip", "link", "del", self.cable])
        _succeeds(["ip", "netns", "del", self.name])


def _succeeds(step: list[str]) -> bool:
    return subprocess.run(step, capture_output=True, check=False).returncode == 0


def forward(listener: socket.socket, target: tuple[str, int]) -> None:
    """Connect every caller of a listener with a target, until the listener is closed."""
    while True:
        try:
            caller, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(caller, target), daemon=True).start()


def _join(caller: socket.socket, target: tuple[str, int]) -> None:
    with caller:
        try:
            callee = socket.create_connection(target, timeout=10)
        except OSError:
            return
        with callee:
            callee.settimeout(None)
            back = threading.Thread(target=_copy, args=(callee, caller), daemon=True)
            back.start()
            _copy(caller, callee)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Forward a port of this namespace's loopback: PORT HOST:PORT."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    host, _, port = sys.argv[2].rpartition(":")
    print("listening", flush=True)
    forward(listener, (host, int(port)))


if __name__ == "__main__":
    main()
