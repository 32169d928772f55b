"""Speculative decoding on the command line."""

from typing import Any

EAGLE = '{"method": "eagle3", "model": "somebody/eagle3", "num_speculative_tokens": 2}'
SMALL = ("llama-3.1-8b", "--gpu", "h200-sxm", "--max-num-seqs", 32, "--input-len", 64, "--output-len", 24)


def test_simulate_takes_the_engines_own_json(answered: Any) -> None:
    words = ("simulate", *SMALL, "--rate", 20, "-n", 40, "--speculative-config", EAGLE)
    told = answered(*words, "--acceptance", "0.8,0.6", "--json").json
    assert told["deployment"]["speculation"]["acceptance_rates"] == [0.8, 0.6]
    assert told["speculation"]["num_draft_tokens"] > 0
    text = answered(*words, "--full").out
    assert "assumed; say what you see with --acceptance" in " ".join(text.split())
    assert "is not at hand" in text
    assert "acceptance length" in text


def test_speculate_answers_with_a_table_charts_and_a_sentence(infercast: Any, tmp_path: Any) -> None:
    words = ("speculate", *SMALL, "-n", 12, "--concurrencies", "1,4", "--speculative-config", EAGLE)
    text = infercast(*words, "--acceptance", "0.8").out
    assert "Where it stops paying" in text
    assert "pays at every load up to 4 clients" in " ".join(text.split())
    told = infercast(*words, "--json").json
    assert [point["clients"] for point in told["points"]] == [1, 4]
    assert "nothing drafts here" in infercast("speculate", *SMALL, "-n", 4).sentence


SGLANG = ("--engine", "sglang", "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "some/eagle3",
          "--speculative-num-steps", 2, "--speculative-eagle-topk", 1)  # fmt: skip


def test_sglang_drafts_by_its_own_flags(answered: Any, infercast: Any) -> None:
    small = ("llama-3.1-8b", "--gpu", "h200-sxm", "--input-len", 64, "--output-len", 24)
    told = answered("simulate", *small, "--rate", 20, "-n", 40, *SGLANG, "--acceptance", "0.8,0.6", "--json").json
    assert told["deployment"]["speculation"]["acceptance_rates"] == [0.8, 0.6]
    assert told["speculation"]["num_draft_tokens"] > 0
    words = ("speculate", *small, "-n", 12, "--concurrencies", "1,4", *SGLANG, "--acceptance", "0.8")
    assert "pays at every load up to 4 clients" in " ".join(infercast(*words).out.split())
    assert "needs speculative_draft_model_path" in answered("memory", *small[:3], *SGLANG[:4]).sentence
    other = ("--engine", "sglang", "--speculative-config", EAGLE)
    assert "--speculative-config" in answered("simulate", *small[:3], "--rate", 5, *other).sentence


def test_a_pasted_command_is_explained_with_its_drafts(answered: Any) -> None:
    command = f"vllm serve llama-3.1-8b --max-num-seqs 32 --speculative-config '{EAGLE}'"
    words = ("explain-command", command, "--gpu", "h200-sxm", "--no-advice", "--rate", 5, "-n", 20)
    told = answered(*words, "--json").json
    (flag,) = (each for each in told["flags"] if each["flag"] == "speculative-config")
    assert flag["status"] == "read"
    assert flag["means"].startswith("EAGLE-3, 2 drafts: ")


def test_a_plan_keeps_a_promise_by_drafts_that_takes_more_gpus_without(answered: Any) -> None:
    words = ("plan", "llama-3.1-8b", "--gpu", "h200-sxm", "--max-gpus", 2, "--rate", 4, "-n", 30, "--input-len", 200,
             "--output-len", 40, "--slo", "tpot_p95<4ms", "--workers", 1)  # fmt: skip
    plain, drafted = (answered(*words, *more, "--json").json for more in ((), ("--speculative-config", EAGLE)))
    assert (plain["winner"]["total_gpus"], drafted["winner"]["total_gpus"]) == (2, 1)
