"""The Kubernetes example is valid, and starts servers with flags that exist."""

import copy
from pathlib import Path

import pytest
import yaml

from outrider.cli.flags import DraftFlags
from outrider.cli.model_flags import ModelFlags
from outrider.cli.serve import ServerFlags
from outrider.server.auth import _is_open

PROBES = ("readiness", "liveness", "startup")
FILE = Path(__file__).parents[2] / "examples/fleet/kubernetes.yaml"
OBJECTS = list(yaml.safe_load_all(FILE.read_text()))
SERVERS = [
    each["spec"]["template"]["spec"]
    for each in OBJECTS
    if each["kind"] == "Deployment" and "router" not in each["metadata"]["name"]
]


@pytest.mark.parametrize("pod", SERVERS)
def test_a_pod_starts_a_server_and_outlives_its_grace(pod):
    (container,) = pod["containers"]
    command, *given = container["args"]
    assert command == "serve"
    flags = dict(each.removeprefix("--").replace("-", "_").split("=") for each in given)
    known = {*ServerFlags.__slots__, *ModelFlags.__slots__, *DraftFlags.__slots__}
    assert set(flags) <= known
    ends_s = float(flags["shutdown_delay"]) + float(flags["shutdown_grace"])
    assert pod["terminationGracePeriodSeconds"] > ends_s
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    probes = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in PROBES]
    assert all(_is_open(path) for path in probes), "probes have no key"


@pytest.mark.parametrize("version", ["1.28", "1.37"])
@pytest.mark.fast_cases(2)
def test_every_object_follows_the_schema_of_kubernetes(version):
    """Strictly: a field that the schema does not know is an error."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for each in OBJECTS:
        validate.validate(each, version, strict=True)
    wrong = copy.deepcopy(OBJECTS[0])
    container = wrong["spec"]["template"]["spec"]["containers"][0]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(validate.ValidationError, match="readynessProbe"):
        validate.validate(wrong, version, strict=True)
