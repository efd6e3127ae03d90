"""Spans of a real server, received by a collector over HTTP."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.served import ServerProcess, wait_for

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The URL of a collector, and what it has received."""
    received: list[ExportTraceServiceRequest] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    server.shutdown()
    thread.join()


@pytest.mark.slow
def test_a_request_becomes_a_span_below_the_clients_own(
    served_folder: Path,
    tmp_path: Path,
    collector: tuple[str, list[ExportTraceServiceRequest]],
) -> None:
    url, received = collector
    flags = ["--draft", "ngram", "--otlp-traces-endpoint", url]
    server = ServerProcess(served_folder, tmp_path / "log", *flags)
    try:
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "ignore_eos": True}
        headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert server.post("/v1/chat/completions", body, headers=headers).status_code == 200
    finally:
        server.process.terminate()
        server.process.wait(60)
    wait_for(lambda: bool(received))
    (span,) = received[0].resource_spans[0].scope_spans[0].spans
    values = {each.key: each.value for each in span.attributes}
    assert span.name == "llm_request"
    assert span.trace_id.hex() == TRACE
    assert values["gen_ai.usage.completion_tokens"].int_value == 5
    assert values["gen_ai.latency.e2e"].double_value > 0
    assert span.end_time_unix_nano > span.start_time_unix_nano
