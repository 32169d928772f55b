// A day of traffic: how many replicas, by three policies, and what they cost. It runs as a job.

import { POLICIES, dayChart } from "../charts/day.js";
import { slider } from "../controls/inputs.js";
import { element, fill, table } from "../lib/dom.js";
import { digits, dollars, plain } from "../lib/format.js";
import { toast } from "../lib/tip.js";
import { jobPlace } from "./job.js";

const USUAL = 1.8;

/** The card with its form. */
export function dayCard(store, transport) {
  let peak = USUAL;
  const note = element("p", { class: "card-note" });
  const height = slider({
    label: "Busiest hour",
    unit: "times the mean",
    low: 1.05,
    high: 5,
    change: (value) => {
      peak = value;
      height.show(value);
    },
  });
  height.show(peak);
  const job = jobPlace(store, transport, (answer) => shown(answer.capacity));
  const button = element("button", { type: "button", class: "strong", id: "day-start", onclick: begin }, "Plan a day");

  function begin() {
    if (!store.state.rate) {
      toast("A day needs a request rate; choose Rate under Traffic.");
      return;
    }
    const question = store.question(store.run);
    const slo = store.state.slo ?? "ttft_p99<1s,tpot_p95<40ms";
    job.start("capacity", {
      ...question,
      state: { ...question.state, rate: store.state.rate, slo, day_profile: `sine:${plain(peak)}:14` },
    });
  }

  store.listen(() => {
    fill(note, `Replicas of this deployment over a day whose mean is ${plain(store.state.rate ?? 0)} requests/s.`);
  });
  return element(
    "section",
    { class: "card day", "aria-labelledby": "day-title" },
    element(
      "header",
      { class: "card-head" },
      element("h2", { id: "day-title" }, "A day: how many replicas, and when?"),
    ),
    note,
    element("div", { class: "plan-form" }, element("div", { class: "day-peak" }, height.node), button),
    job.node,
  );
}

function shown(day) {
  const place = element("div", { class: "day-chart" });
  new ResizeObserver(() => {
    if (place.clientWidth) fill(place, dayChart(Math.floor(place.clientWidth), day));
  }).observe(place);
  const rows = Object.entries(day.policies).map(([name, policy]) => [
    POLICIES[name] ?? name,
    policy.replicas_min === policy.replicas_max
      ? plain(policy.replicas_max)
      : `${plain(policy.replicas_min)} to ${plain(policy.replicas_max)}`,
    plain(Math.round(policy.gpu_hours)),
    Number.isFinite(policy.usd_per_day) ? dollars(policy.usd_per_day) : "–",
    Number.isFinite(policy.wall_kwh_per_day) ? digits(policy.wall_kwh_per_day) : "–",
    policy.minutes_out_of_slo < 0.01 ? "0" : digits(policy.minutes_out_of_slo, 2),
    policy.reaches_goal ? "reached" : "missed",
  ]);
  const goal = `within SLO for ${plain(day.goal.share * 100)} % of ${day.goal.of}`;
  return [
    element(
      "p",
      { class: "plan-answer" },
      element("strong", {}, `${plain(day.smallest_fixed_fleet ?? 0)} replicas`),
      ` are the smallest fixed fleet that is ${goal}; one serves up to ${digits(day.replica.requests_per_s_at_slo)} requests/s within the SLO.`,
    ),
    place,
    table("Policies, per day", ["policy", "replicas", "GPU hours", "cost", "kWh", "minutes out of SLO", "goal"], rows),
  ];
}
