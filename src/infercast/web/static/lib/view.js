// From answers to what the charts and tiles show.

import { letter } from "./fields.js";

const PARTS = {
  weights: "Weights",
  activations: "Activations",
  cuda_graphs: "CUDA graphs",
  libraries: "Libraries",
  kv_cache: "KV cache",
  left_free: "Left free",
};

/** A run as charts want it; null before its first answer. */
export function viewOf(run, index) {
  if (!run.answer)
    return { letter: letter(index), colour: index, run, memory: memoryOf(run), error: run.error, limits: [] };
  const { forecast, timeline, rooflines } = run.answer;
  return {
    letter: letter(index),
    colour: index,
    run,
    forecast,
    error: run.error,
    state: run.answered,
    before: run.before && !run.error ? { forecast: run.before.answer.forecast, state: run.before.state } : null,
    ...(run.error
      ? {}
      : { ttft: latencyOf(run, "ttft"), tpot: latencyOf(run, "tpot"), endToEnd: latencyOf(run, "end_to_end") }),
    memory: memoryOf(run),
    timeline,
    phases: forecast.phases.map(phaseOf),
    rooflines: rooflines.flatMap((pool) => pool.phases.map(rooflineOf)),
    curve: run.curve?.result ?? null,
    rate: run.answered.rate,
  };
}

function latencyOf(run, name) {
  const { forecast, distributions } = run.answer;
  const before = run.before?.answer;
  return {
    percentiles: forecast[`${name}_ms`],
    intervals: forecast[`${name}_ms_interval`] ?? null,
    quantiles: distributions[`${name}_ms`],
    before: before
      ? { percentiles: before.forecast[`${name}_ms`], quantiles: before.distributions[`${name}_ms`] }
      : null,
    limits: limitsOf(run.answered.slo, name),
  };
}

/** The limits that an SLO sets on a latency: [{name: "p99", limit: 1000}] in milliseconds. */
export function limitsOf(slo, quantity) {
  const short = { end_to_end: "e2e" }[quantity] ?? quantity;
  return [...(slo ?? "").matchAll(/(\w+?)_(p[\d.]+|mean)\s*<=?\s*([\d.]+)\s*(us|ms|s)?/g)]
    .filter(([, name]) => name === short)
    .map(([, , percentile, value, unit]) => ({
      name: percentile,
      limit: Number(value) * ({ us: 1e-3, ms: 1 }[unit] ?? 1e3),
    }));
}

function memoryOf(run) {
  const memory = run.error ? run.fit?.memory : run.answer?.memory;
  if (!memory) return null;
  const use = run.error ? null : run.answer?.forecast.kv_usage;
  return {
    total: memory.total_bytes,
    parts: memory.parts
      .map((part) => ({
        key: part.key.toLowerCase(),
        title: PARTS[part.key.toLowerCase()] ?? part.title,
        bytes: part.bytes,
      }))
      .filter((part) => part.bytes > 0),
    mean: use?.mean ?? NaN,
    peak: use?.peak ?? NaN,
    tokens: memory.kv_tokens,
    sequences: memory.most_sequences,
    context: memory.context,
    perToken: memory.kv_bytes_per_token,
    fits: memory.fits,
    problem: memory.problem,
    gpus: memory.gpus,
  };
}

/** A phase with times per step in milliseconds, and the time in which the GPU waits as a family of its own. */
function phaseOf(phase) {
  const whole = phase.seconds || 1;
  const families = phase.families.map((each) => ({
    family: each.family,
    share: each.seconds / whole,
    perStep: (each.seconds / phase.steps) * 1e3,
    bound: each.bound,
    source: each.source,
    names: Object.keys(each.kernels).slice(0, 4).join(", "),
  }));
  if (phase.host_bound_seconds > 0) {
    families.push({
      family: "GPU idle",
      share: phase.host_bound_seconds / whole,
      perStep: (phase.host_bound_seconds / phase.steps) * 1e3,
      bound: "host",
      source: null,
      names: "the GPU waits for its host",
    });
  }
  return {
    phase: phase.phase,
    pool: phase.pool,
    steps: phase.steps,
    perStep: (phase.seconds / phase.steps) * 1e3,
    seconds: phase.seconds,
    tokens: phase.tokens,
    families,
  };
}

function rooflineOf(phase) {
  return {
    phase: phase.phase,
    bandwidth: phase.dram_bytes_per_s,
    peaks: phase.peaks_flops_per_s,
    kernels: phase.kernels.map((each) => ({
      name: each.name,
      family: each.family,
      share: each.share,
      intensity: each.flops_per_byte,
      reached: each.flops_per_s,
      limit: each.limit_flops_per_s,
      dtype: each.dtype,
    })),
  };
}

/** A value below a path of names, or nothing. */
export const reach = (object, ...names) => names.reduce((value, name) => value?.[name], object);

/** Energy of a forecast in the parts that the page shows; null where the GPU's power is not known. */
export function energyOf(forecast) {
  const energy = forecast?.energy;
  if (!energy) return null;
  return {
    perToken: forecast.joules_per_output_token,
    interval: energy.joules_per_output_token_interval ?? null,
    perRequest: forecast.joules_per_request,
    perMillion: forecast.watt_hours_per_million_output_tokens,
    watts: forecast.watts_per_gpu,
    peak: forecast.peak_watts_per_gpu,
    idle: energy.idle_watts_per_gpu,
    limit: energy.limit_watts_per_gpu,
    wall: forecast.wall_watts,
    source: energy.source,
  };
}
