"""A web server on this machine that can be told to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Answer:
    """What to send: `cut` bytes of the body and then nothing, if given; `hang` before the body until the test ends."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hang: bool = False
    length: bool = True


@dataclass
class Server:
    """Answers by path; `asked` is what came in: path with query, and headers."""

    url: str
    answers: dict[str, Callable[[dict[str, str], str], Answer]]
    asked: list[tuple[str, dict[str, str]]]

    def put(self, path: str, *answers: Answer) -> None:
        """One answer after another; the last one stays."""
        left = list(answers)
        self.answers[path] = lambda headers, query: left.pop(0) if len(left) > 1 else left[0]

    def put_file(
        self, path: str, body: bytes, tag: str = '"1"', *, ranges: bool = True, cuts: list[int] | None = None
    ) -> None:
        """A file as good servers give it, with ranges and If-Range; the first answers are cut after so many bytes."""
        left = list(cuts or [])

        def answer(headers: dict[str, str], query: str) -> Answer:
            cut = left.pop(0) if left else None
            asked = headers.get("range", "")
            if not ranges or not asked or headers.get("if-range", tag) != tag:
                return Answer(body, headers={"ETag": tag} if tag else {}, cut=cut)
            begin = int(asked.removeprefix("bytes=").removesuffix("-"))
            if begin >= len(body):
                return Answer(status=416, headers={"Content-Range": f"bytes */{len(body)}"})
            span = f"bytes {begin}-{len(body) - 1}/{len(body)}"
            return Answer(body[begin:], 206, {"ETag": tag, "Content-Range": span}, cut)

        self.answers[path] = answer

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


@contextmanager
def serving() -> Iterator[Server]:
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append((self.path, headers))
            parts = urlsplit(self.path)
            answer = server.answers.get(parts.path, lambda headers, query: Answer(b"nothing here", 404))(
                headers, parts.query
            )
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.length:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if answer.hang:
                over.wait(10)
                return
            self.wfile.write(answer.body[: answer.cut])

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client went away, as it should

    with Quiet(("127.0.0.1", 0), Handler) as http:
        server = Server(f"http://127.0.0.1:{http.server_port}", {}, [])
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            over.set()
            http.shutdown()
            thread.join()
