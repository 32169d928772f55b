#!/usr/bin/env bash
# Serving on a GPU that was left out of everything: fit without it, then re-run measured serving with what that knows.
#
#   benchmarks/accuracy/left_out.sh TABLES PUBLISHED.csv OUT
#
# TABLES: a folder of published kernel tables; PUBLISHED.csv: published runs (docs/validation.md), of which those of the GPU
# left out count. H200 is left out with its sibling H100 and our own sweep, and then known by 32 rows
# of each kernel (`infercast measure --anchors 32`); B200 is estimated from all others.
set -euo pipefail
tables=${1:?folder of kernel tables} published=${2:?published runs} out=${3:?where to write}
families=gemm,attention_prefill,attention_decode,moe,collective,quantise
mkdir -p "$out/h200" "$out/b200"
infercast=(python3 -m infercast)
"${infercast[@]}" fit "$tables" --gpus a100-sxm,l40s --families "$families" --out "$out/h200/kernels.npz"
"${infercast[@]}" fit "$tables" --gpus a100-sxm,l40s,h100-sxm,h200-sxm --families "$families" --measurements measurements \
  --out "$out/b200/kernels.npz"
for engine in vllm sglang; do
  "${infercast[@]}" validate --engine $engine --predictor "$out/h200/kernels.npz" --json >"$out/h200/$engine.json"
  "${infercast[@]}" validate --engine $engine --predictor "$out/h200/kernels.npz" --anchors measurements/h200-sxm/anchors \
    --json >"$out/h200/$engine-anchors.json"
done
for gpu in h200 b200; do
  "${infercast[@]}" validate "$published" --predictor "$out/$gpu/kernels.npz" --json >"$out/$gpu/published.json"
done
