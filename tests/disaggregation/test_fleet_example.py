"""The Kubernetes example starts servers with flags that exist."""

from pathlib import Path

import pytest
import yaml

from outrider.cli.flags import DraftFlags
from outrider.cli.model_flags import ModelFlags
from outrider.cli.serve import ServerFlags

FILE = Path(__file__).parents[2] / "examples/fleet/kubernetes.yaml"
SERVERS = [
    each["spec"]["template"]["spec"]
    for each in yaml.safe_load_all(FILE.read_text())
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
