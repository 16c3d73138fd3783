"""A server on loopback that speaks S3 and can check keys: moto's, in a process of its own.

It is told on its standard input to listen, to stop listening and to check keys, and keeps what it stores meanwhile. It
is no thread of the test: clients of object stores call from native code, some of them without giving way to Python.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from tests.worlds.waiting import free_port

MISSING = "needs a server that speaks S3: pip install 'moto[server]' boto3"
BUCKET = "lake"
REGION = "us-east-1"
PROCESS = """
import sys
from moto import settings
from moto.server import ThreadedMotoServer
port = int(sys.argv[1])
server = None
for line in sys.stdin:
    match line.strip():
        case "listen":
            server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
            server.start()
        case "stop":
            server.stop()
        case "check keys":
            settings.INITIAL_NO_AUTH_ACTION_COUNT = 0.0
        case "take any keys":
            settings.INITIAL_NO_AUTH_ACTION_COUNT = float("inf")
    print("done", flush=True)
"""


def has_server() -> bool:
    """Return whether a server can be started here."""
    return all(importlib.util.find_spec(name) is not None for name in ("moto", "flask", "boto3"))


class S3Server:
    """One bucket, and one user who may do everything with it; it can be stopped and started again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.access_key = self.secret_key = "setup"
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> S3Server:
        self._tell("listen")
        return self

    def stop(self) -> None:
        """Be away; what is stored stays."""
        self._tell("stop")

    def check_keys(self, checked: bool = True) -> None:
        """Refuse, or take again, calls that the user has not signed."""
        self._tell("check keys" if checked else "take any keys")

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()

    def make_bucket(self) -> None:
        """Make the bucket and its user."""
        identities = self.client("iam")
        identities.create_user(UserName="center")
        everything = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
        identities.put_user_policy(UserName="center", PolicyName="all", PolicyDocument=json.dumps(everything))
        made = identities.create_access_key(UserName="center")["AccessKey"]
        self.client("s3").create_bucket(Bucket=BUCKET)
        self.access_key, self.secret_key = made["AccessKeyId"], made["SecretAccessKey"]

    def client(self, service: str = "s3") -> Any:
        import boto3

        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
        )

    def _tell(self, what: str) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{what}\n")
        stdin.flush()
        assert stdout.readline().strip() == "done"
