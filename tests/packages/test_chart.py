"""The chart: Helm lints and renders it, every object fits Kubernetes' schemas, and it agrees with the systemd units."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.agent.config import AgentConfig
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.monitoring.metrics import FIGURE_DESCRIPTIONS
from gangline.contract.settings import load
from gangline.executors.kubernetes.api import ApiServer
from tests import sandboxed
from tests.kubernetes_cluster import ADMIN_TOKEN, MISSING, has_kubernetes, running_kubernetes
from tests.test_systemd_unit import UNIT, docs_of

helm = pytest.importorskip("helm_python", reason="needs: pip install helm-python-sdk")
validate = pytest.importorskip(
    "kubernetes_validate", reason="needs: pip install kubernetes-validate"
)

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "packaging" / "helm" / "gangline"
AGGREGATOR_UNIT = ROOT / "packaging" / "systemd" / "gangline-aggregator.service"
OLDEST = (1, 27)
VERSIONS = [
    version
    for version in sorted(
        {*validate.utils.all_versions()}, key=lambda each: tuple(map(int, each.split(".")))
    )
    if tuple(map(int, version.split(".")[:2])) >= OLDEST
]
#: Groups whose schemas come with other products.
FOREIGN = ("cert-manager.io/", "kueue.x-k8s.io/", "monitoring.coreos.com/")
FULL = {
    "agent": {"profile": "full", "podResources": True, "login": {"source": "host"}},
    "tls": {"source": "certManager", "certManager": {"issuer": {"name": "ca"}}},
    "networkPolicy": {"agentsFrom": ["10.0.0.0/8"], "prometheusFrom": {"name": "monitoring"}},
    "monitoring": {
        "metrics": True,
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "executor": {
        "enabled": True,
        "image": {"repository": "example/executor", "tag": "1"},
        "expiryImage": {"repository": "example/kubectl", "tag": "1"},
        "settings": {"actions": ["AVOID"], "kueue": True, "device_taints": True},
    },
}
PLAIN = {
    "agent": {"stateFolder": "", "runtimeClassName": "", "login": {"source": "none"}},
    "tls": {"source": "none"},
    "networkPolicy": {"enabled": False},
}
CASES: dict[str, dict[str, Any]] = {"default": {}, "full": FULL, "plain": PLAIN}


@pytest.fixture(scope="module")
def chart() -> Iterator[Any]:
    loaded_chart = helm.Chart.load(str(CHART))
    yield loaded_chart
    loaded_chart.close()


def render(chart: Any, values: dict[str, Any]) -> tuple[list[Any], str]:
    files = chart.render(copy.deepcopy(values), name="gangline", namespace="health")
    notes = "".join(text for name, text in files.items() if name.endswith("NOTES.txt"))
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document], notes


def one(objects: list[Any], kind: str, name: str = "gangline-agent") -> Any:
    (document,) = (
        object for object in objects if (object["kind"], object["metadata"]["name"]) == (kind, name)
    )
    return document


def pods(objects: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each pod that the objects make, by the name of its controller."""
    for object in objects:
        spec = object.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "containers" in spec.get("template", {}).get("spec", {}):
            yield object["metadata"]["name"], spec["template"]["spec"]


def agent_of(objects: list[Any]) -> Any:
    (container,) = one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    return container


def test_helm_finds_nothing_wrong() -> None:
    """`helm lint --strict`, as the release's own check does."""
    result = helm.lint(str(CHART), strict=True)
    assert result["errors"] == []
    assert [message["error"] for message in result["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", [VERSIONS[0], VERSIONS[-1]])
def test_every_object_fits_the_schemas(case: str, version: str, chart: Any) -> None:
    """A field that Kubernetes does not know is dropped in silence: `hostPiD` would be an agent that sees no process."""
    objects, _ = render(chart, CASES[case])
    for object in objects:
        if not object["apiVersion"].startswith(FOREIGN):
            validate.validate(object, version, strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS[1:-1])
def test_so_it_does_for_the_versions_between(version: str, chart: Any) -> None:
    for case in CASES:
        test_every_object_fits_the_schemas(case, version, chart)


def test_a_misspelt_field_would_be_found(chart: Any) -> None:
    """Proves that the previous test can fail."""
    daemon_set = one(render(chart, {})[0], "DaemonSet")
    daemon_set["spec"]["template"]["spec"]["hostPiD"] = True
    with pytest.raises(validate.ValidationError, match="hostPiD"):
        validate.validate(daemon_set, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": {"agent": {"tag": "latest"}}}, "/image/agent/tag"),
        ({"agent": {"profile": "privileged"}}, "'restricted', 'full'"),
        ({"agent": {"maxUnavailable": "10%"}}, "/agent/maxUnavailable"),
        ({"agent": {"maxUnavailabel": "1%"}}, "maxUnavailabel"),
        ({"agent": {"stateFolder": "var/lib"}}, "/agent/stateFolder"),
        ({"agent": {"settings": {"labels": {"a": "b"}}}}, "/agent/settings/labels"),
        ({"tls": {"source": "certManager"}}, "/tls/certManager/issuer/name"),
        ({"tls": {"source": "self-signed"}}, "/tls/source"),
        ({"aggregator": {"disruptionsMax": 2}}, "/aggregator/disruptionsMax"),
        ({"networkPolicy": {"agentsFrom": ["10.0.0.1"]}}, "/networkPolicy/agentsFrom/0"),
        ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "/monitoring/metrics"),
        ({"executor": {"enabled": True}}, "/executor/image/repository"),
    ],
)
def test_wrong_values_are_rejected_with_their_name(
    values: dict[str, Any], message: str, chart: Any
) -> None:
    """A value that is dropped in silence is a fleet that is not configured as its operator believes."""
    with pytest.raises(helm.HelmError) as raised:
        render(chart, values)
    assert message in str(raised.value)


def given_by_docs() -> set[str]:
    """Capabilities that docs/security.md lists as given."""
    rows = re.findall(r"^\| `(CAP_\w+)` \|.*\| (.*) \|$", docs_of("security.md"), re.MULTILINE)
    return {name for name, lost in rows if not lost.startswith("not given")}


@pytest.mark.parametrize("profile", ["restricted", "full"])
def test_it_has_the_capabilities_of_the_unit(profile: str, chart: Any) -> None:
    """If two lists of rights differ, an attacker gets the wider one."""
    unit = set(sandboxed.words_of(UNIT, "CapabilityBoundingSet"))
    container = agent_of(render(chart, {"agent": {"profile": profile}})[0])
    options = {
        argument.partition("=")[0]: argument.partition("=")[2] for argument in container["command"]
    }
    for option in ("--inh-caps", "--ambient-caps"):
        assert {f"CAP_{name[1:].upper()}" for name in options[option].split(",")} == unit
    assert "--no-new-privs" in container["command"]
    assert given_by_docs() == unit
    if profile == "restricted":
        capabilities = container["securityContext"]["capabilities"]
        assert capabilities["drop"] == ["ALL"]
        assert {f"CAP_{capability}" for capability in capabilities["add"]} == unit


def test_kubelets_socket_costs_one_capability_more(chart: Any) -> None:
    """docs/security.md: CAP_DAC_OVERRIDE is not given, except where the chart is asked for it."""
    container = agent_of(render(chart, {"agent": {"podResources": True}})[0])
    assert container["securityContext"]["capabilities"]["add"][-1] == "DAC_OVERRIDE"
    assert "+dac_override" in container["command"][2]
    assert "agent.podResources" in docs_of("security.md")


@pytest.mark.parametrize("case", CASES)
def test_paths_and_times_are_those_of_the_units(case: str, chart: Any) -> None:
    """An upgrade of the packages that moves a folder would leave the chart's agents without their spool."""
    objects, _ = render(chart, CASES[case])
    for unit, kind, name, state in (
        (UNIT, "DaemonSet", "gangline-agent", "/var/lib/gangline"),
        (AGGREGATOR_UNIT, "StatefulSet", "gangline-aggregator", "/var/lib/gangline-aggregator"),
    ):
        spec = one(objects, kind, name)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert f"/var/lib/{sandboxed.words_of(unit, 'StateDirectory')[0]}" == state
        assert {state, "/etc/gangline", "/tmp"} <= mounts
        assert container["workingDir"] == sandboxed.words_of(unit, "WorkingDirectory")[0]
        started = sandboxed.words_of(unit, "ExecStart")
        assert started[0] in container["command"]
        assert f"--config={started[-1]}" in container["command"]
        assert spec["terminationGracePeriodSeconds"] == int(
            sandboxed.words_of(unit, "TimeoutStopSec")[0]
        )
    agent = agent_of(objects)
    assert f"/run/{sandboxed.words_of(UNIT, 'RuntimeDirectory')[0]}" in str(agent["volumeMounts"])
    memory = sandboxed.words_of(UNIT, "MemoryMax")[0]
    assert agent["resources"]["limits"]["memory"] == memory + "i"


@pytest.mark.parametrize("case", CASES)
def test_its_settings_are_settings(case: str, chart: Any, tmp_path: Path) -> None:
    """A pod that ends with `unknown setting` on 10,000 nodes."""
    objects, _ = render(
        chart,
        {**CASES[case], "aggregator": {"settings": {"history_days": 30, "certificate_names": []}}},
    )
    agent, aggregator = tmp_path / "agent.toml", tmp_path / "aggregator.toml"
    agent.write_text(one(objects, "ConfigMap")["data"]["agent.toml"])
    aggregator.write_text(
        one(objects, "ConfigMap", "gangline-aggregator")["data"]["aggregator.toml"]
    )
    config = load(AgentConfig, agent)
    packaged = load(AgentConfig, ROOT / "packaging" / "systemd" / "agent.toml")
    for name in ("spool_folder", "events_folder", "state_folder"):
        assert getattr(config, name) == getattr(packaged, name)
    service = load(AggregatorConfig, aggregator)
    assert (service.data, service.history_days) == (Path("/var/lib/gangline-aggregator"), 30)
    assert config.allow_plaintext == service.listen_beyond_loopback == (case == "plain")
    command = agent_of(objects)["command"]
    login = tomllib.loads(agent.read_text()).get("token_file", "") or next(
        (argument.partition("token_file=")[2] for argument in command if "token_file=" in argument),
        "",
    )
    assert (
        login
        == {
            "default": "/etc/gangline-login/$(NODE_NAME)",
            "full": "/etc/gangline-login/token",
            "plain": "",
        }[case]
    )


@pytest.mark.parametrize("case", CASES)
def test_pods_are_as_closed_as_they_can_be(case: str, chart: Any) -> None:
    """Peers' charts run `alpine:latest` privileged, enter the host's namespaces and fetch a script."""
    objects, _ = render(chart, CASES[case])
    seen = dict(pods(objects))
    assert {"gangline-agent", "gangline-aggregator"} <= set(seen)
    for controller, spec in seen.items():
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            name = f"{controller}/{container['name']}"
            context = {**spec.get("securityContext", {}), **container["securityContext"]}
            assert context["readOnlyRootFilesystem"], name
            text = str([container.get("command"), container.get("args")])
            assert not re.search(r"nsenter|curl|wget|https?://|chroot|bash", text), name
            assert not container["image"].endswith(":latest") and ":" in container["image"], name
            assert "memory" in container["resources"]["limits"], name
            if name == "gangline-agent/state-folder":
                assert not context["allowPrivilegeEscalation"]
                assert set(context["capabilities"]["add"]) == {"CHOWN"}
                continue
            assert context["runAsNonRoot"] and context["runAsUser"], name
            assert bool(context.get("privileged")) == (
                case == "full" and controller == "gangline-agent"
            )
            if controller != "gangline-agent":
                assert context["capabilities"] == {"drop": ["ALL"]}, name
                assert not context["allowPrivilegeEscalation"], name
    restricted = case != "full"
    volumes = [
        volume.get("hostPath", {}).get("path") for volume in seen["gangline-agent"]["volumes"]
    ]
    assert ("/dev" in volumes) is not restricted


def test_the_store_is_backed_up_before_a_newer_version_migrates_it(chart: Any) -> None:
    """`helm upgrade` migrated the store, and `helm rollback` left an aggregator that could not open it."""

    def pod(values: dict[str, Any]) -> Any:
        objects, _ = render(chart, values)
        return one(objects, "StatefulSet", "gangline-aggregator")["spec"]["template"]["spec"]

    values = CASES["default"]
    (container,) = pod(values)["initContainers"]
    assert "--before-migration" in container["command"]
    data = {mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "data"}
    assert f"--data={next(iter(data))}" in container["command"]
    off = {**values, "aggregator": {**values.get("aggregator", {}), "backUpBeforeMigration": False}}
    assert "initContainers" not in pod(off)


@pytest.mark.parametrize("case", CASES)
def test_probes_never_ask_a_driver(case: str, chart: Any) -> None:
    """NVSentinel #1748: a probe that asked a sick GPU killed its agent 49 times, when it was needed."""
    objects, _ = render(chart, CASES[case])
    agent = agent_of(objects)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert agent[probe]["exec"]["command"][1:3] == ["agent", "status"]
    (aggregator,) = dict(pods(objects))["gangline-aggregator"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "admin health" in " ".join(aggregator[probe]["exec"]["command"])


def test_at_most_one_percent_is_away_at_once(chart: Any) -> None:
    strategy = one(render(chart, {})[0], "DaemonSet")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "1%"}}


@pytest.mark.parametrize("profile", ["restricted", "full"])
def test_the_notes_say_what_a_profile_sees(profile: str, chart: Any) -> None:
    _, notes = render(chart, {"agent": {"profile": profile}})
    assert ("/dev/kmsg" in notes) == ("#1671" in notes) == (profile == "restricted")
    assert "agent.podResources=true" in notes
    assert not re.search(r"\n{3}", notes)


def test_the_chart_is_of_this_version(chart: Any) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart.metadata["appVersion"] == project["version"]


def test_the_executor_is_that_of_packaging_kubernetes(chart: Any) -> None:
    """The rights are written once, and tested on a real API server there."""
    objects, _ = render(chart, FULL)
    folder = ROOT / "executors" / "kubernetes" / "manifests"
    for file in sorted(folder.glob("*.yaml")):
        if file.name == "extender.yaml":  # beside a scheduler: no part of the chart
            continue
        for written in yaml.safe_load_all(file.read_text()):
            if written["kind"] == "Namespace":
                continue
            rendered = one(objects, written["kind"], written["metadata"]["name"])
            assert rendered.get("rules") == written.get("rules")
            place = written["metadata"].get("namespace")
            assert rendered["metadata"].get("namespace") == {"gangline": "health"}.get(place, place)
    deployment = dict(pods(objects))["gangline-executor"]["containers"][0]
    assert deployment["args"][-1] == "--shadow"
    assert deployment["image"] == "example/executor:1"


@pytest.mark.slow
@pytest.mark.skipif(not has_kubernetes(), reason=MISSING)
def test_a_real_api_server_takes_it(chart: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Server-side apply, twice: it rejects unknown fields, and the second time nothing changes."""
    with (
        running_kubernetes(tmp_path_factory.mktemp("chart")) as cluster,
        closing(ApiServer(cluster.access(ADMIN_TOKEN))) as api,
    ):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "health"}}
        api.call("POST", "/api/v1/namespaces", namespace)
        applied = 0
        for case in CASES.values():
            for manifest in render(chart, case)[0]:
                if (path := _path_of(api, manifest)) is None:
                    continue
                first = api.call("PATCH", path, manifest, "application/apply-patch+yaml")
                again = api.call("PATCH", path, manifest, "application/apply-patch+yaml")
                assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
                applied += 1
        assert applied > 25


def _path_of(api: ApiServer, each: Any) -> str | None:
    """Return where an object is applied; None for a kind that this server does not have."""
    group = each["apiVersion"]
    base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    try:
        kinds = api.call("GET", base)["resources"]
    except Exception as error:  # noqa: BLE001 - 404, or a group that it does not serve
        assert "404" in str(error) or "could not find" in str(error), error
        return None
    matching = [kind for kind in kinds if kind["kind"] == each["kind"] and "/" not in kind["name"]]
    if not matching:
        return None
    place = f"/namespaces/{each['metadata'].get('namespace', 'health')}"
    middle = place if matching[0]["namespaced"] else ""
    return f"{base}{middle}/{matching[0]['name']}/{each['metadata']['name']}?fieldManager=chart&force=true"


def test_the_board_asks_for_figures_that_exist(chart: Any) -> None:
    """A panel over a figure that was renamed is empty, which reads as `all is well`."""
    (text,) = one(render(chart, FULL)[0], "ConfigMap", "gangline-dashboards")["data"].values()
    figures = set(re.findall(r"gangline_aggregator_(\w+)", " ".join(
        target["expr"] for panel in json.loads(text)["panels"] for target in panel["targets"]
    )))  # fmt: skip
    assert figures - {*FIGURE_DESCRIPTIONS, "alarm", "commit_seconds_bucket"} == set()
    rules = one(render(chart, FULL)[0], "PrometheusRule", "gangline")["spec"]["groups"]
    assert any("commit_seconds_bucket" in str(group) for group in rules)
