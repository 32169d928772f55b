"""What a plan leaves behind: files that start it, check it and ask again."""

import csv
import io
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml

from infercast.engines.base import engine_named
from infercast.engines.settings import REFUSED
from infercast.errors import InputError
from infercast.forecast.command.flags import read_flags
from infercast.forecast.command.pasted import find_commands, read_documents
from infercast.forecast.plan.candidate import Candidate
from infercast.forecast.plan.question import Plan
from infercast.models.layout import ParallelLayout
from infercast.report.deployment import repository_of
from infercast.report.plan_folder import (
    check_folder,
    compose_file,
    dynamo_graph,
    llm_d_values,
    manifests,
    plain_name,
    plan_files,
    pools_of,
    write_plan,
    yaml_text,
)

ENGINE = "vllm@0.25"
Plans = Callable[..., Plan]
SMALL = Candidate(
    ENGINE, "h200-sxm", ParallelLayout(2), 3, "fp8", "fp8", (("enable_chunked_prefill", False), ("max_num_seqs", 128))
)


KNOWN: dict[str, dict[str, str]] = {}


def texts(plan: Plan) -> dict[str, str]:
    """The files of a plan, made once for all tests that look at them."""
    name = f"{plan.question.model} {plan.winner and plan.winner.candidate}"
    if name not in KNOWN:
        KNOWN[name] = fresh_texts(plan)
    return KNOWN[name]


def fresh_texts(plan: Plan) -> dict[str, str]:
    files = plan_files(plan, "infercast plan qwen3-0.6b --rate 2")
    return {name: text if isinstance(text, str) else "".join(text) for name, text in files.items()}


def all_yaml(files: dict[str, str]) -> dict[str, list[Any]]:
    return {name: read_documents(text) for name, text in files.items() if name.endswith(".yaml")}


def test_one_pool_of_several_replicas(plan_of: Plans) -> None:
    files = texts(plan_of(SMALL))
    assert set(files) == {
        "README.md", "serve.sh", "compose.yaml", "kubernetes.yaml", "llm-d-values.yaml", "dynamo.yaml", "bench.sh",
        "candidates.csv", "pareto.svg", "again.sh",
    }  # fmt: skip
    read = all_yaml(files)
    services = read["compose.yaml"][0]["services"]
    assert list(services) == ["server-0", "server-1", "server-2"]
    devices = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in services.values()]
    assert devices == [["0", "1"], ["2", "3"], ["4", "5"]]
    deployment, service, claim = read["kubernetes.yaml"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert deployment["spec"]["replicas"] == "3"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    values = read["llm-d-values.yaml"][0]
    assert values["decode"]["parallelism"] == {"tensor": "2", "data": "1"}
    assert "--tensor-parallel-size" not in values["decode"]["containers"][0]["args"]
    assert values["prefill"] == {"create": "false"}
    workers = read["dynamo.yaml"][0]["spec"]["services"]
    assert workers["ServerWorker"]["replicas"] == "3"


def test_every_command_is_one_that_explain_command_reads(plan_of: Plans) -> None:
    """What is written is what was simulated: the flags read back are those of the candidate."""
    files = texts(plan_of(SMALL))
    engine = engine_named(ENGINE)
    for name in ("compose.yaml", "kubernetes.yaml"):
        for command in find_commands(files[name], engine.commands):
            reading = read_flags(command.words, engine)
            assert reading.model == "Qwen/Qwen3-0.6B"
            assert reading.options == {"tensor_parallel_size": 2, "quantization": "fp8", "kv_cache_dtype": "fp8"}
            assert reading.settings == {"enable_chunked_prefill": False, "max_num_seqs": 128}
            assert not [flag for flag in reading.flags if flag.status == REFUSED]


def test_two_pools_hand_over_keys_and_values(plan_of: Plans) -> None:
    prefill = Candidate(ENGINE, "h200-sxm", replicas=2)
    winner = Candidate(ENGINE, "l4", replicas=3, prefill=prefill)
    files = texts(plan_of(winner))
    read = all_yaml(files)
    names = [each["metadata"]["name"] for each in read["kubernetes.yaml"]]
    assert names == [*["qwen3-0-6b-prefill"] * 2, *["qwen3-0-6b-decode"] * 2, "qwen3-0-6b-cache"]
    args = read["kubernetes.yaml"][0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert json.loads(args[args.index("--kv-transfer-config") + 1])["kv_connector"] == "NixlConnector"
    values = read["llm-d-values.yaml"][0]
    assert (values["prefill"]["replicas"], values["decode"]["replicas"]) == ("2", "3")
    assert values["routing"]["proxy"]["enabled"] == "true"
    workers = read["dynamo.yaml"][0]["spec"]["services"]
    assert "--is-prefill-worker" in workers["PrefillWorker"]["extraPodSpec"]["mainContainer"]["args"]
    assert "--kv-transfer-config" not in workers["DecodeWorker"]["extraPodSpec"]["mainContainer"]["args"]
    assert "prefill-1)" in files["serve.sh"]
    assert "decode-2)" in files["serve.sh"]


def test_a_layout_over_several_nodes(plan_of: Plans) -> None:
    winner = Candidate(ENGINE, "h200-sxm", ParallelLayout(tensor=1, data=16, experts=True))
    files = texts(plan_of(winner, "qwen3-30b-a3b", max_gpus=16))
    assert "compose.yaml" not in files
    read = all_yaml(files)
    group = read["kubernetes.yaml"][0]
    assert group["kind"] == "LeaderWorkerSet"
    assert group["spec"]["leaderWorkerTemplate"]["size"] == "2"
    leader, worker = (
        group["spec"]["leaderWorkerTemplate"][f"{which}Template"]["spec"]["containers"][0]["args"][0]
        for which in ("leader", "worker")
    )
    assert "--data-parallel-size-local 8" in leader
    assert "$((LWS_WORKER_INDEX * 8))" in leader
    assert ("--headless" in leader, "--headless" in worker) == (False, True)
    assert read["dynamo.yaml"][0]["spec"]["services"]["ServerWorker"]["multinode"] == {"nodeCount": "2"}
    assert read["llm-d-values.yaml"][0]["multinode"] == "true"


def test_pods_go_to_their_gpus_keep_weights_and_are_asked_for_their_health(plan_of: Plans) -> None:
    read = all_yaml(texts(plan_of(SMALL)))
    pod = read["kubernetes.yaml"][0]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    assert pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert pod["volumes"][1]["persistentVolumeClaim"] == {"claimName": "qwen3-0-6b-cache"}
    container = pod["containers"][0]
    assert container["volumeMounts"][1]["mountPath"] == "/root/.cache/huggingface"
    assert {container[f"{name}Probe"]["httpGet"]["port"] for name in ("startup", "readiness", "liveness")} == {"8000"}
    assert container["resources"]["requests"]["cpu"] == "8"
    worker = read["dynamo.yaml"][0]["spec"]["services"]["ServerWorker"]["extraPodSpec"]
    assert worker["nodeSelector"] == pod["nodeSelector"]
    accelerator = {"labelKey": "nvidia.com/gpu.product", "labelValues": ["NVIDIA-H200"]}
    assert read["llm-d-values.yaml"][0]["decode"]["acceleratorTypes"] == accelerator
    assert "healthcheck" in read["compose.yaml"][0]["services"]["server-0"]


WIDE = Candidate(ENGINE, "h200-sxm", ParallelLayout(tensor=8, pipeline=2), kv_cache_dtype="fp8", prefill=SMALL)


@pytest.mark.parametrize("candidate", [SMALL, WIDE, Candidate(ENGINE, "mi300x")], ids=str)
def test_what_kubernetes_reads_keeps_its_schema(candidate: Candidate) -> None:
    """By the schemas that the API server publishes; pods of a LeaderWorkerSet and of Dynamo are pods, too."""
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not here")
    pools, checked = pools_of(candidate), []
    for document in yaml.safe_load_all(manifests(pools, "some/model", "model", "A plan.", 2e10)):
        templates = document["spec"].get("leaderWorkerTemplate", {})
        pods = [each for name, each in templates.items() if name.endswith("Template")]
        checked += [{"apiVersion": "v1", "kind": "Pod", **each} for each in pods] if pods else [document]
    graph, claim = yaml.safe_load_all(dynamo_graph(pools, "some/model", "model", "A plan.", 2e10) or "")
    for worker in graph["spec"]["services"].values():
        container = {"name": "main", **worker["extraPodSpec"].pop("mainContainer")}
        checked.append(
            {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], **worker["extraPodSpec"]}}
        )
    for document in [*checked, claim]:
        checker.validate(document, "1.34", strict=True)


SCHEMAS = yaml.safe_load(Path(__file__).with_name("schemas.yaml").read_text(encoding="utf-8"))
KINDS: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}


def departures(value: Any, schema: Any, where: str = "") -> list[str]:
    """What is not as in one of the schemas of ``schemas.yaml``."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where} is {value!r}"]
        known = {key.removesuffix("!"): each for key, each in schema.items()}
        missing = [f"{where}.{key[:-1]} is missing" for key in schema if key.endswith("!") and key[:-1] not in value]
        unknown = [f"{where}.{key} is not known" for key in value if key not in known and "*" not in known]
        present = [(key, known.get(key, known.get("*"))) for key in value if key in known or "*" in known]
        return [
            *missing,
            *unknown,
            *(each for key, part in present for each in departures(value[key], part, f"{where}.{key}")),
        ]
    if isinstance(schema, list) and len(schema) == 1:
        if not isinstance(value, list):
            return [f"{where} is {value!r}, no list"]
        return [each for number, item in enumerate(value) for each in departures(item, schema[0], f"{where}[{number}]")]
    if isinstance(schema, list):
        found = [departures(value, each, where) for each in schema]
        return [] if [] in found else found[-1]
    text = str(schema or "null")
    if text in ("any", "pod"):
        return []
    if text.startswith("="):
        return [] if value in text[1:].split(",") else [f"{where} is {value!r}, not {text}"]
    if text.startswith(">="):
        return [] if type(value) is int and value >= int(text[2:]) else [f"{where} is {value!r}, not {text}"]
    fits = [isinstance(value, KINDS[each]) and (each == "boolean") == isinstance(value, bool) for each in text.split()]
    return [] if any(fits) else [f"{where} is {value!r}, not {text}"]


@pytest.mark.parametrize(
    "candidate", [SMALL, WIDE, Candidate(ENGINE, "mi300x"), Candidate("sglang@0.5.16", "l4")], ids=str
)
def test_what_others_read_has_their_fields(candidate: Candidate) -> None:
    pools = pools_of(candidate)
    title, weights = "A plan.", 2e10
    written = {
        "compose": compose_file(pools, "some/model", title),
        "dynamo": dynamo_graph(pools, "some/model", "model", title, weights),
        "llm-d": llm_d_values(pools, "some/model", weights, title),
        "leader-worker-set": manifests(pools, "some/model", "model", title, weights),
    }
    wrong = []
    for name, text in written.items():
        found = [each for each in yaml.safe_load_all(text or "") if each]
        if name == "leader-worker-set":
            found = [each for each in found if each["kind"] == "LeaderWorkerSet"]
        for each in found[:1] if name == "dynamo" else found:
            wrong += departures(each, SCHEMAS[name], name)
    assert not wrong


def test_a_wrong_file_departs_from_its_schema() -> None:
    device = {"driver": "nvidia", "count": 1.5}
    service = {"image": 3, "deploy": {"resources": {"reservations": {"devices": [device]}}}, "replica": 2}
    assert departures({"services": {"a": service}}, SCHEMAS["compose"], "compose") == [
        "compose.services.a.replica is not known",
        "compose.services.a.image is 3, not string",
        "compose.services.a.deploy.resources.reservations.devices[0].capabilities is missing",
        "compose.services.a.deploy.resources.reservations.devices[0].count is 1.5, not string integer",
    ]
    graph = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": "a"}}
    workers = {"W": {"replicas": "2", "multinode": {"nodeCount": 1}}}
    assert departures({**graph, "spec": {"services": workers}}, SCHEMAS["dynamo"]) == [
        ".spec.services.W.replicas is '2', not >=0", ".spec.services.W.multinode.nodeCount is 1, not >=2",
    ]  # fmt: skip


def test_charts_ask_for_gpus_of_the_right_brand() -> None:
    pools = pools_of(Candidate(ENGINE, "mi300x"))
    assert yaml.safe_load(llm_d_values(pools, "some/model", 2e10, "") or "")["accelerator"] == {"type": "amd"}
    graph, _ = yaml.safe_load_all(dynamo_graph(pools, "some/model", "model", "", 2e10) or "")
    assert graph["spec"]["services"]["ServerWorker"]["resources"]["limits"] == {"gpu": "1", "gpuType": "amd.com/gpu"}


def test_stages_over_several_nodes(plan_of: Plans) -> None:
    winner = Candidate(ENGINE, "h200-sxm", ParallelLayout(tensor=8, pipeline=2))
    files = texts(plan_of(winner, "llama-3.1-70b", max_gpus=16))
    assert "--nnodes 2 --node-rank" in files["serve.sh"]
    assert "--pipeline-parallel-size 2" in files["serve.sh"]


def test_scripts_are_scripts(plan_of: Plans) -> None:
    wide = Candidate(ENGINE, "h200-sxm", ParallelLayout(tensor=8, pipeline=2), kv_cache_dtype="fp8", prefill=SMALL)
    for plan in (plan_of(SMALL), plan_of(wide, "llama-3.1-70b", max_gpus=64)):
        scripts = {name: text for name, text in texts(plan).items() if name.endswith(".sh")}
        assert len(scripts) == 3
        for text in scripts.values():
            checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
            assert checked.returncode == 0, checked.stderr


def test_serve_starts_what_it_says(plan_of: Plans, tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(texts(plan_of(SMALL))["serve.sh"])
    (tmp_path / "vllm").write_text('#!/bin/sh\necho "$CUDA_VISIBLE_DEVICES $@"\n')
    (tmp_path / "vllm").chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = subprocess.run(
        ["bash", tmp_path / "serve.sh", "server-1"], env=surroundings, text=True, capture_output=True, check=True
    )
    assert run.stdout == (
        "2,3 serve Qwen/Qwen3-0.6B --tensor-parallel-size 2 --quantization fp8 --kv-cache-dtype fp8 "
        "--no-enable-chunked-prefill --max-num-seqs 128 --port 8001\n"
    )


def test_the_benchmark_prints_the_forecast_beside_it(plan_of: Plans, tmp_path: Path) -> None:
    (tmp_path / "bench.sh").write_text(texts(plan_of(SMALL))["bench.sh"])
    measured = {"median_ttft_ms": 1e9, "output_throughput": 1.0}
    (tmp_path / "vllm").write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ $1 = --result-filename ] && file=$2; shift; done\n"
        f"echo '{json.dumps(measured)}' > \"$RESULTS/$file\"\n"
    )
    (tmp_path / "vllm").chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "RESULTS": str(tmp_path / "results")}
    run = subprocess.run(["bash", tmp_path / "bench.sh"], env=surroundings, text=True, capture_output=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("== ") == 4
    assert "ttft p50 ms" in run.stdout
    assert "outside" in run.stdout


def test_a_format_that_needs_a_checkpoint_is_said(plan_of: Plans) -> None:
    files = texts(plan_of(Candidate(ENGINE, "l4", quantization="int4")))
    assert "The forecast is of int4 weights: MODEL must be a checkpoint in that format." in files["serve.sh"]
    assert "--quantization" not in files["serve.sh"]


def test_candidates_have_numbers_or_a_reason(plan_of: Plans) -> None:
    rows = list(csv.DictReader(io.StringIO(texts(plan_of(SMALL))["candidates.csv"])))
    assert [row["stage"] for row in rows] == ["simulated", "simulated", "refused"]
    assert rows[0]["ttft_p99_ms"] == "200"
    assert rows[0]["dollars_per_hour"] == "24"
    assert rows[2]["reason"] == 'heads, "16", do not divide'
    assert rows[2]["ttft_p99_ms"] == ""


def test_the_picture_is_svg(plan_of: Plans) -> None:
    picture = ET.fromstring(texts(plan_of(SMALL))["pareto.svg"])
    kinds = [each.get("class") for each in picture.iter("{http://www.w3.org/2000/svg}circle")]
    assert kinds.count("front") == 4
    assert kinds.count("winner") == 2


def test_without_a_winner_nothing_is_started(plan_of: Plans) -> None:
    files = texts(plan_of(None))
    assert set(files) == {"README.md", "candidates.csv", "pareto.svg", "again.sh"}
    assert "No candidate keeps the SLO." in files["README.md"]


def test_the_same_plan_gives_the_same_bytes(plan_of: Plans) -> None:
    assert fresh_texts(plan_of(SMALL)) == texts(plan_of(SMALL))


def test_a_folder_is_not_overwritten_unasked(plan_of: Plans, tmp_path: Path) -> None:
    plan, folder = plan_of(None), tmp_path / "plans" / "one"
    written = write_plan(plan, folder, "infercast plan")
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in written)
    assert os.access(folder / "again.sh", os.X_OK)
    with pytest.raises(InputError, match="is not empty; name another folder, or pass --force"):
        write_plan(plan, folder, "infercast plan")
    assert write_plan(plan, folder, "infercast plan", force=True) == written
    with pytest.raises(InputError, match="is not a folder"):
        check_folder(folder / "again.sh")


def test_names() -> None:
    assert repository_of("llama-3.3-70b") == "meta-llama/Llama-3.3-70B-Instruct"
    assert repository_of("someone/else") == "someone/else"
    assert plain_name("meta-llama/Llama-3.3_70B") == "llama-3-3-70b"


def test_yaml_of_odd_strings() -> None:
    tree = {"a": ["yes", "1", "", "x: y", "#no", "two\nlines", "- b", "{c}", "é", "$((A * 2))"], "b": {}, "c": []}
    assert read_documents(yaml_text(tree))[0]["a"] == tree["a"]
