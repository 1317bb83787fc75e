// -- What the cluster did in the last two minutes. Each plot has its unit, its scale and the time.

const SPAN_S = 120;
const course = [];
const PLOTS = [
  { id: "rate", title: "Throughput", unit: "tokens/s", lines: [["rate", ""]] },
  { id: "length", title: "Accept length", unit: "tokens per step", lines: [["length", ""]], write: value => value.toFixed(2) },
  { id: "requests-now", title: "Requests", unit: "count", lines: [["running", "running"], ["queued", "waiting"]], note: "moved" },
  { id: "drafts", title: "Plan", unit: "tokens, levels", lines: [["tokens", "tokens a step"], ["steps", "depth"]] },
  { id: "gain", title: "Expected of the plan", unit: "tokens/s", lines: [["expected", "expected"], ["fixed", "with the plan of the settings"]], note: "gain" },
];

$("plots").append(...PLOTS.map(emptyPlot), make("section", {}, make("h3", {}, "Plan in force"), make("div", { class: "chips", id: "plan" })));

function emptyPlot({ id, title, unit, lines, note }) {
  const paths = lines.map((_, line) => make("svg:path", { class: line ? "other" : "" }));
  return make("figure", { class: "plot", "data-plot": id },
    make("figcaption", { id: `${id}-said` }, make("h3", {}, `${title} `, make("span", { class: "unit" }, `(${unit})`)), ...lines.map(([key, label], line) => legend(key, label, line, lines.length)),
      note ? make("p", { id: note }) : null),
    make("div", { class: "axes", "aria-hidden": "true" },
      make("div", { class: "y" }, make("span", {}, "1"), make("span", {}, "0.5"), make("span", {}, "0")),
      make("svg:svg", { id: `${id}-course`, viewBox: "0 0 100 84", preserveAspectRatio: "none" }, make("svg:path", { class: "grid", d: "M0,0H100M0,42H100" }), ...paths),
      make("div", { class: "x" }, make("span", {}, "−2 min"), make("span", {}, "−1 min"), make("span", {}, "now"))));
}

function legend(key, label, line, count) {
  const mark = count > 1 ? make("i", { class: line ? "other" : "" }) : null;
  return make("span", {}, mark, label ? `${label} ` : "", make("b", { class: "value", id: key }, "–"));
}

function showPlots(now) {
  course.push(measured(now));
  while (now.now - course[0].now > SPAN_S) course.shift();
  PLOTS.forEach(drawPlot);
  showPlan(now);
  $("moved").textContent = `${plural(now.totals.failovers, "failover")} · ${plural(now.totals.preemptions, "preemption")}`;
  $("gain").textContent = gain(course.at(-1));
}

/** What is drawn of a sample; null where nothing is known. */
function measured(now) {
  const here = now.verifiers.filter(isHere), plans = here.map(each => each.plan).filter(Boolean);
  const estimates = here.map(each => each.speculation?.estimate).filter(Boolean);
  const sum = (list, key) => (list.length ? list.reduce((sum, each) => sum + each[key], 0) : null);
  const mean = key => (plans.length ? sum(plans, key) / plans.length : null);
  const seconds = now.now - samples[0].now, steps = now.totals.steps - samples[0].totals.steps;
  return {
    now: now.now,
    rate: seconds > 0 ? (now.totals.tokens - samples[0].totals.tokens) / seconds : null,
    length: steps > 0 ? 1 + (now.totals.accepted - samples[0].totals.accepted) / steps : null,
    running: now.running, queued: now.queued,
    tokens: mean("num_draft_tokens"), steps: mean("num_steps"),
    expected: sum(estimates, "rate"), fixed: sum(estimates, "static_rate"),
  };
}

/** Values as steps, newest at the right; both lines of a plot on one scale. */
function drawPlot({ id, lines, write = short }) {
  const top = ceiling(Math.max(0, ...course.flatMap(each => lines.map(([key]) => each[key] ?? 0))));
  const last = course.at(-1), marks = document.querySelectorAll(`[data-plot="${id}"] .y span`);
  const x = each => (100 - (last.now - each.now) / SPAN_S * 100).toFixed(2), y = value => (84 - value / top * 84).toFixed(1);
  [top, top / 2, 0].forEach((value, i) => (marks[i].textContent = value < 1000 ? String(value) : short(value)));
  lines.forEach(([key], line) => {
    let path = "", before = null;
    for (const each of course) {
      const value = each[key];
      if (value !== null) path += before === null ? `M${x(each)},${y(value)}` : `H${x(each)}V${y(value)}`;
      before = value;
    }
    $(`${id}-course`).children[line + 1].setAttribute("d", path || "M0,84");
    $(key).textContent = last[key] === null ? "–" : write(last[key]);
  });
}

/** The least of 1, 2, 5, 10, … that is not below a value: a scale that seldom changes. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map(each => each * power).find(each => each >= value * .999);
}

/** A value in few digits. */
function short(value) {
  if (value >= 9999.5) return `${Number((value / 1000).toPrecision(3))}k`;
  return value.toFixed(value >= 100 || Number.isInteger(value) ? 0 : 1);
}

function gain({ expected, fixed }) {
  if (expected === null) return "the controller in force gives no estimate";
  const share = fixed > 0 ? Math.round(100 * (expected / fixed - 1)) : 0;
  return `gain ${share < 0 ? "−" : share > 0 ? "+" : ""}${Math.abs(share)} %`;
}

const PLAN = [
  ["adaptive", "controller", value => value],
  ["max_draft_tokens", "at most", value => `${value} tokens`],
  ["num_steps", "depth", value => value],
  ["topk", "children", value => value],
  ["num_draft_tokens", "tokens a step", value => value],
  ["wait_budget_us", "wait", value => `${value / 1000} ms`],
  ["draft_ahead", "ahead", value => (value ? "yes" : "no")],
];

/** The plan of the first verifier that has told one, in words. */
function showPlan(now) {
  const found = now.verifiers.filter(isHere).find(each => each.plan), report = found?.speculation;
  const plan = found && { ...found.plan, adaptive: report?.adaptive ?? null, max_draft_tokens: report?.max_draft_tokens ?? null };
  const chips = (plan ? PLAN : []).filter(([key]) => plan[key] !== null).map(([key, label, write]) => {
    const changed = key in now.plan_changes;
    return make("span", { class: changed ? "chip changed" : "chip", title: key }, label + " ", make("b", {}, String(write(plan[key]))), changed ? " · changed" : "");
  });
  fill($("plan"), ...(chips.length ? chips : ["no verifier has said yet"]));
}
