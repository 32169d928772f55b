#!/usr/bin/env bash
# The small measurements on a GPU with nothing else running: KV writes, quantisers, attention of Triton and PyTorch,
# bare tensor core rates, launch floors; the default anchors; sparse attention and scans where vLLM is installed.
# At most eight minutes. Run from the root of a checkout; OUT is where the results go (one archive and a log each).
set -u
out=${OUT:-./small}
mkdir -p "$out"
work=$(mktemp -d)
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
sweep() { # name, seconds at most, options of `infercast measure`
  local name=$1 seconds=$2
  shift 2
  echo "== $name: infercast measure $*"
  timeout --kill-after=10 "$seconds" python3 -m infercast measure --out "$work/$name" --json "$@" \
    >"$out/$name.json" 2>"$work/$name.log"
  echo "exit $? after $SECONDS s; rows kept: $(cat "$work/$name"/*/parts/*.jsonl 2>/dev/null | wc -l)"
  tail -n 5 "$work/$name.log"
  tar -C "$work" -czf "$out/small.tgz" . # after each one: what is cut off later costs nothing
}
sweep probe 170 --families probe --minutes 2.6
sweep anchors 90 --anchors 64
if python3 -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)'; then
  sweep sparse 150 --families sparse --minutes 2.0
  sweep scan 175 --families scan,gating --minutes 2.6
fi
echo "all done after $SECONDS s"
