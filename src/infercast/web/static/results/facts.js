// Cards of words and numbers: the SLO, cost and energy, and what the forecast rests on.

import { element } from "../lib/dom.js";
import { briefTime, digits, dollars, joined, parameters, percent, plain, scaled, time } from "../lib/format.js";
import { term } from "../lib/tip.js";
import { energyOf } from "../lib/view.js";

/** Cost and energy of one run as a list of facts. */
export function costBody(view) {
  const { forecast } = view;
  const energy = energyOf(forecast);
  const price = forecast.prices?.[0];
  const priced = Number.isFinite(forecast.usd_per_request);
  const rows = [
    [term("gpu-hour", "All GPUs"), Number.isFinite(forecast.usd_per_hour) ? `${dollars(forecast.usd_per_hour)} per hour` : "–"],
    ["Million output tokens", dollars(forecast.usd_per_million_output_tokens)],
    ["Million tokens, all", dollars(forecast.usd_per_million_tokens)],
    ["Thousand requests", dollars(priced ? forecast.usd_per_request * 1000 : NaN)],
    [
      term("throughput", "Output tokens/s per GPU"),
      joined(scaled(forecast.output_tokens_per_s_per_gpu ?? forecast.output_tokens_per_s / forecast.gpus)),
    ],
    [
      term("goodput", "Goodput"),
      Number.isFinite(forecast.goodput_requests_per_s)
        ? `${digits(forecast.goodput_requests_per_s)} requests/s`
        : "no SLO",
    ],
  ];
  return element(
    "div",
    { class: "cost" },
    list(rows),
    energy ? power(energy) : null,
    price
      ? element(
          "p",
          { class: "card-note source" },
          Number.isFinite(price.usd_per_gpu_hour)
            ? `Price: $${plain(price.usd_per_gpu_hour)} per GPU-hour of ${price.gpu}, ${price.provider}, ${price.kind}, ${price.date}`
            : `No price of ${price.gpu} is known; give one under Prices.`,
        )
      : null,
  );
}

/** Power of a GPU between idle and its limit, and what a token takes. */
function power(energy) {
  const most = Math.max(energy.limit ?? 0, energy.peak ?? 0) * 1.02;
  const at = (watts) => `${((watts / most) * 100).toFixed(2)}%`;
  const known = (value) => Number.isFinite(value);
  return element(
    "div",
    { class: "power" },
    list(
      [
        [term("energy", "Energy per output token"), `${digits(energy.perToken)} J`],
        ["Million output tokens", `${digits(energy.perMillion / 1000)} kWh`],
        ["Thousand requests", `${digits((energy.perRequest * 1000) / 3.6e6)} kWh`],
        known(energy.wall) ? ["At the wall, all servers", `${joined(scaled(energy.wall, 1e4))} W`] : null,
        [term("power", "Power per GPU"), `${digits(energy.watts)} W of ${digits(energy.limit)} W`],
      ].filter(Boolean),
    ),
    element(
      "div",
      {
        class: "limit-bar watts",
        role: "img",
        "aria-label": `Power per GPU: idle ${digits(energy.idle)} W, mean ${digits(energy.watts)} W, peak ${digits(energy.peak)} W, limit ${digits(energy.limit)} W`,
      },
      element("span", { class: "allowed", style: { width: at(energy.limit) } }),
      element("span", { class: "drawn", style: { width: at(energy.watts) } }),
      element("span", { class: "idle-part", style: { width: at(energy.idle) } }),
      known(energy.peak) ? element("span", { class: "bar-point", style: { left: at(energy.peak) } }) : null,
    ),
    element("p", { class: "card-note" }, `idle ${digits(energy.idle)} W, highest step ${digits(energy.peak)} W`),
  );
}

const list = (rows) =>
  element(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))),
  );

/** The limits of the SLO with what the forecast says of each. */
export function promiseBody(view) {
  const { slo } = view.forecast;
  if (!slo)
    return element(
      "p",
      { class: "card-note" },
      view.state.slo
        ? "Checking …"
        : "No SLO is set. Give a limit under Goal, and each limit is held against the forecast and its interval.",
    );
  return element(
    "div",
    { class: "limits" },
    slo.limits.map((limit) => {
      const most = Math.max(limit.limit_ms, limit.interval_ms?.[1] ?? limit.forecast_ms) * 1.12;
      const at = (value) => `${((value / most) * 100).toFixed(2)}%`;
      const holds = limit.forecast_ms <= limit.limit_ms;
      const name = `${limit.quantity.toUpperCase().replace("END_TO_END", "End to end")} ${limit.percentile ? `p${plain(limit.percentile)}` : "mean"}`;
      return element(
        "div",
        { class: `limit-row ${holds ? "good" : "bad"}` },
        element(
          "p",
          {},
          element("b", {}, name),
          ` ${time(limit.forecast_ms)}, promised ${briefTime(limit.limit_ms)}`,
          element("span", { class: "right" }, Number.isFinite(limit.odds) ? `odds ${percent(limit.odds)}` : ""),
        ),
        element(
          "div",
          { class: "limit-bar", "aria-hidden": "true" },
          element("span", { class: "allowed", style: { width: at(limit.limit_ms) } }),
          limit.interval_ms
            ? element("span", {
                class: "bar-range",
                style: {
                  left: at(limit.interval_ms[0]),
                  width: `${(((limit.interval_ms[1] - limit.interval_ms[0]) / most) * 100).toFixed(2)}%`,
                },
              })
            : null,
          element("span", { class: "bar-point", style: { left: at(limit.forecast_ms) } }),
        ),
      );
    }),
  );
}

/** Caveats, and what was simulated. */
export function basisBody(view) {
  const { forecast } = view;
  const { deployment } = forecast;
  return element(
    "div",
    { class: "basis" },
    list([
      ["Model", `${deployment.model}, ${parameters(deployment.parameters)} parameters, weights ${deployment.weights}`],
      [term("engine", "Engine"), `${deployment.engine}${deployment.engine_note ? `: ${deployment.engine_note}` : ""}`],
      [
        term("kv-cache", "KV cache"),
        `${plain(deployment.num_gpu_blocks)} blocks of ${deployment.block_size} tokens, ${deployment.kv_cache_dtype}`,
      ],
      [
        term("max-num-batched-tokens", "Tokens per step"),
        `${plain(deployment.max_num_batched_tokens)}, at most ${plain(deployment.max_num_seqs)} sequences`,
      ],
      ["Workload", forecast.workload.description],
      [
        term("steady-state", "Load"),
        `${forecast.state}; ${digits(forecast.running.mean)} requests run on average, ${digits(forecast.waiting.mean)} wait`,
      ],
      ["Kernel latencies", forecast.source],
    ]),
    element(
      "ul",
      { class: "caveats" },
      forecast.caveats.map((text) => element("li", {}, text)),
    ),
  );
}
