// The headline numbers: what each is called, where it stands in a forecast, and whether less of it is better.

import { dollars, joined, latency, scaled, digits } from "../lib/format.js";
import { energyOf, reach } from "../lib/view.js";

/** [{key, term, title, sub, value(forecast), interval(forecast), parts(value) -> [number, unit], less}]. */
export const NUMBERS = [
  latencyNumber("ttft", "TTFT", "p50"),
  latencyNumber("ttft", "TTFT", "p99"),
  latencyNumber("tpot", "TPOT", "p50"),
  {
    key: "throughput",
    term: "throughput",
    title: "Throughput",
    sub: "tokens/s",
    less: false,
    value: (forecast) => forecast.output_tokens_per_s,
    interval: (forecast) => forecast.output_tokens_per_s_interval,
    parts: (value) => scaled(value),
  },
  {
    key: "cost",
    term: "usd-per-million-tokens",
    title: "Cost",
    sub: "per M tokens",
    less: true,
    value: (forecast) => forecast.usd_per_million_output_tokens,
    interval: () => null,
    parts: (value) => (Number.isFinite(value) ? [dollars(value), ""] : ["–", "no price known"]),
  },
  {
    key: "energy",
    term: "energy",
    title: "Energy",
    sub: "per token",
    less: true,
    optional: true,
    value: (forecast) => energyOf(forecast)?.perToken,
    interval: (forecast) => energyOf(forecast)?.interval,
    parts: (value) => [digits(value), "J"],
  },
];

function latencyNumber(quantity, title, percentile) {
  return {
    key: `${quantity}-${percentile}`,
    term: quantity,
    title,
    sub: percentile,
    less: true,
    value: (forecast) => reach(forecast, `${quantity}_ms`, percentile),
    interval: (forecast) => reach(forecast, `${quantity}_ms_interval`, percentile),
    parts: latency,
  };
}

export const text = (number, value) => joined(number.parts(value));
