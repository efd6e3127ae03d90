"""HTTPS, a path prefix, other origins, default sampling: a real server with all of them."""

import asyncio
import logging
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from support.served import ServerProcess

from outrider.errors import ConfigError
from outrider.server.access_log import AccessLogMiddleware
from outrider.server.auth import KeyMiddleware
from outrider.server.web_settings import WebSettings, parse_origins


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The files of a key and of a certificate for this machine."""
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", key, "-out", certificate, *names], check=True, capture_output=True
    )
    return key, certificate


def test_a_certificate_and_its_key_are_accepted(certificate: tuple[str, str]) -> None:
    key, chain = certificate
    WebSettings(ssl_keyfile=key, ssl_certfile=chain).check()


def test_certificates_that_cannot_be_used_are_refused_at_start(
    certificate: tuple[str, str],
) -> None:
    key, chain = certificate
    for wrong, reason in (
        (WebSettings(ssl_keyfile=key), "needs both"),
        (WebSettings(ssl_keyfile=key, ssl_certfile="/no/file"), "no file"),
        (WebSettings(ssl_keyfile=chain, ssl_certfile=key), "cannot be used"),
    ):
        with pytest.raises(ConfigError, match=reason):
            wrong.check()


@pytest.mark.parametrize("text", ['["http://a", "http://b"]', "http://a,http://b"])
def test_origins_are_a_list_in_json_or_with_commas(text: str) -> None:
    assert parse_origins(text) == ("http://a", "http://b")
    assert parse_origins("") == ()


@pytest.mark.slow
def test_a_server_speaks_https_behind_a_prefix_to_pages_of_an_origin(
    served_folder: Path, tmp_path: Path, certificate: tuple[str, str]
) -> None:
    key, chain = certificate
    flags = ["--ssl-keyfile", key, "--ssl-certfile", chain, "--root-path", "/llm"]
    more = ["--allowed-origins", '["http://page.example"]', "--api-key", "k"]
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.0}')
    more += ["--generation-config", str(tmp_path), "--chat-template", "{{ messages[0].content }}"]
    server = ServerProcess(served_folder, tmp_path / "log", *flags, *more)
    try:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=chain)
        with httpx.Client(base_url=server.url, verify=trusting, timeout=30) as client:
            asked = {"origin": "http://page.example", "access-control-request-method": "POST"}
            preflight = client.options("/v1/chat/completions", headers=asked)
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == "http://page.example"
            refused = client.get("/v1/models", headers={"origin": "http://page.example"})
            assert refused.status_code == 401
            assert refused.headers["access-control-allow-origin"] == "http://page.example"
            key_header = {"authorization": "Bearer k", "origin": "http://other.example"}
            answer = client.get("/v1/models", headers=key_header)
            assert answer.status_code == 200
            assert "access-control-allow-origin" not in answer.headers
            schema = client.get("/openapi.json", headers=key_header).json()
            assert schema["servers"] == [{"url": "/llm"}]
            told = {"messages": [{"role": "user", "content": "the rider"}], "max_tokens": 12}
            texts = {
                client.post(
                    "/v1/chat/completions", json={**told, **more}, headers=key_header
                ).json()["choices"][0]["message"]["content"]
                for more in ({}, {"seed": 1}, {"temperature": None}, {"temperature": 0})
            }
            assert len(texts) == 1  # the model's file makes answers greedy
    finally:
        server.process.terminate()
        server.process.wait(60)


@pytest.mark.parametrize("prefix", ["", "/llm", "/page", "/health"])
def test_a_prefix_opens_and_closes_no_route(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """The HTTP server puts the prefix before every path."""
    app = FastAPI()
    for path in ("/health", "/page/chat.js", "/v1/models"):
        app.get(path)(lambda: "answer")
    app.add_middleware(KeyMiddleware, key="k")
    app.add_middleware(AccessLogMiddleware)

    async def ask() -> list[int]:
        config = uvicorn.Config(app, port=0, root_path=prefix, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            paths = ("/health", "/page/chat.js", "/v1/models")
            statuses = [(await client.get(path)).status_code for path in paths]
        server.should_exit = True
        await serving
        return statuses

    with caplog.at_level(logging.DEBUG, "outrider.server.access_log"):
        assert asyncio.run(asyncio.wait_for(ask(), 30)) == [200, 200, 401]
    of_requests = [each for each in caplog.records if each.name == "outrider.server.access_log"]
    levels = [each.levelno for each in of_requests]
    assert levels == [logging.DEBUG, logging.INFO, logging.INFO]  # a probe, and others
