import pytest
from support.model_set import make_models
from support.role_servers import KEY, NAME, USUAL_BACKEND, free_port
from support.served import ServerProcess
from support.spoken import tiny_llama, write_tokenizer


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return make_models(tmp_path_factory.mktemp("roles"), "cpu")


@pytest.fixture(scope="session", name="folder")
def model_with_text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    tiny_llama(4096).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session", name="start")
def start_and_end_servers(folder, tmp_path_factory):
    started = []

    def start(mode, *flags, port=0, environment=KEY):
        roles = ("--disaggregation-mode", mode, "--disaggregation-transfer-backend", USUAL_BACKEND)
        if port:
            roles += ("--disaggregation-bootstrap-port", str(port))
        log = tmp_path_factory.mktemp("log") / "stderr"
        started.append(ServerProcess(folder, log, *NAME, *roles, *flags, environment=environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture(scope="session", name="servers")
def one_of_each(start):
    port = free_port()
    return start("prefill", port=port), start("decode"), start("null"), port
