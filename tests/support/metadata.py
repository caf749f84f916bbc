"""A metadata service as clouds have it on each machine: it plays the answers that their documentation shows."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "WestNO_1"  # of this machine


class Metadata:
    """What it answers by path: a text, or the number of an error. Requests without their header are refused."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.tokens: list[str] = []
        self.asked: list[str] = []
        self.answers: dict[str, str | int] = {
            "/latest/meta-data/spot/instance-action": 404,
            "/computeMetadata/v1/instance/preempted": "FALSE",
            "/metadata/instance/compute/name": NAME,
            "/metadata/scheduledevents": json.dumps({"DocumentIncarnation": 1, "Events": []}),
        }

    def take_on_aws(self, seconds: float) -> None:
        """EC2 announces that it will terminate the machine; times are whole seconds."""
        at = f"{datetime.fromtimestamp(time.time() + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
        self.answers["/latest/meta-data/spot/instance-action"] = json.dumps({"action": "terminate", "time": at})

    def take_on_gcp(self) -> None:
        self.answers["/computeMetadata/v1/instance/preempted"] = "TRUE"

    def schedule_on_azure(self, *events: dict[str, Any]) -> None:
        self.answers["/metadata/scheduledevents"] = json.dumps({"DocumentIncarnation": 2, "Events": events})

    def answer(self, path: str, method: str, headers: Any) -> str | int:
        path, _, _ = path.partition("?")
        self.asked.append(path)
        if path == "/latest/api/token":
            if method != "PUT" or not headers["X-aws-ec2-metadata-token-ttl-seconds"]:
                return 400
            self.tokens.append(f"token {len(self.tokens)}")
            return self.tokens[-1]
        if path.startswith("/latest/") and headers["X-aws-ec2-metadata-token"] not in self.tokens[-1:]:
            return 401
        if path.startswith("/computeMetadata/") and headers["Metadata-Flavor"] != "Google":
            return 403
        if path.startswith("/metadata/") and headers["Metadata"] != "true":
            return 400
        return self.answers.get(path, 404)


def azure_event(kind: str, seconds: float | None, *resources: str) -> dict[str, Any]:
    """An event in so many seconds, or one that has begun."""
    at = "" if seconds is None else format_datetime(datetime.fromtimestamp(time.time() + seconds, UTC), usegmt=True)
    return {
        "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": "Scheduled" if at else "Started",
        "EventType": kind, "ResourceType": "VirtualMachine", "Resources": list(resources), "NotBefore": at,
        "Description": "", "EventSource": "Platform", "DurationInSeconds": -1,
    }  # fmt: skip


@contextmanager
def metadata_service() -> Iterator[Metadata]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = made.answer(self.path, self.command, self.headers)
            self.send_response(found if isinstance(found, int) else 200)
            body = b"" if isinstance(found, int) else found.encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Metadata(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()
