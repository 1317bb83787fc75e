"use strict";
const POLL_MS = 500, RATES_OVER_S = 4, LISTED = 7, REFUSED = 4;
const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; text is never markup. */
function make(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS(SVG, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.filter(child => child !== null));
  return made;
}

/** Make the children of an element equal to these, and touch only what differs: what stays keeps its place, the focus and a selection. */
function fill(parent, ...children) {
  const fresh = [...make("div", {}, ...children).childNodes];
  fresh.forEach((child, i) => {
    const old = parent.childNodes[i];
    if (!old) parent.append(child);
    else if (!old.isEqualNode(child)) become(old, child);
  });
  while (parent.childNodes.length > fresh.length) parent.lastChild.remove();
}

function become(old, child) {
  if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== child.nodeName) return old.replaceWith(child);
  for (const { name } of [...old.attributes]) if (!child.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of child.attributes) if (old.getAttribute(name) !== value) name === "style" ? (old.style.cssText = value) : old.setAttribute(name, value);
  fill(old, ...child.childNodes);
}

/** Text with what cannot be seen made visible. */
function visible(text) {
  const shown = text.replace(/ /g, "␣").replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥");
  return shown.length > 16 ? shown.slice(0, 15) + "…" : shown || "∅";
}

function plural(count, one) {
  return `${count} ${one}${count === 1 ? "" : "s"}`;
}

// -- The cluster, polled.

const samples = [];

async function poll() {
  try {
    const answer = await fetch("cluster.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.statusText);
    showCluster(await answer.json());
    connected(true);
  } catch (error) {
    connected(false);
    if (!(error instanceof TypeError && /fetch/i.test(error.message))) console.warn(error);
  }
  setTimeout(poll, POLL_MS);
}

function connected(yes) {
  const said = yes ? "live" : "the coordinator does not answer; trying again";
  if ($("connection").textContent !== said) $("connection").textContent = said;
  $("connection").classList.toggle("broken", !yes);
}

function showCluster(now) {
  samples.push(now);
  while (samples.length > 2 && now.now - samples[0].now > RATES_OVER_S) samples.shift();
  const build = now.build ? ` · ${now.build}` : "";
  $("summary").textContent = `${now.model} · ${plural(now.verifiers.filter(isHere).length, "verifier")} · ${plural(now.drafters.filter(isHere).length, "drafter")}${build}`;
  showMembers(now);
  showRequests(now);
  showPlots(now);
  chooseByItself(now);
  showDrafts();
}

function isHere(member) {
  return member.state === "serving" || member.state === "draining";
}

function showMembers(now) {
  fill($("coordinator"), make("article", { class: "member", "data-member": "coordinator" },
    make("h3", {}, "coordinator"), make("div", { class: "tag" }, `${now.running} running`), make("div", { class: "tag" }, `${now.queued} waiting`)));
  const none = who => make("p", { class: "soft" }, `no ${who} has joined`);
  const verifiers = cards(now, now.verifiers, "verifier", each => each.model), drafters = cards(now, now.drafters, "drafter", each => each.kind);
  fill($("verifiers"), ...(verifiers.length ? verifiers : [none("verifier")]));
  fill($("drafters"), ...(drafters.length ? drafters : [none("drafter")]));
  drawLinks(now);
}

function byName(members) {
  return [...members].sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
}

/** A card for each member; the ranks of a group stand in one frame. */
function cards(now, members, role, detail) {
  const groups = new Map();
  for (const each of byName(members)) {
    const key = each.group ? `group ${each.group.group_id}` : `alone ${each.name}`;
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  return [...groups.values()].map(some => {
    const made = some.map(each => card(each, role, detail(each), now.build));
    return some[0].group ? frame(some, made) : made[0];
  });
}

function frame(ranks, made) {
  const { group_id, size } = ranks[0].group, here = ranks.filter(isHere), there = new Set(here.map(each => each.group.rank));
  const missing = [...Array(size).keys()].filter(rank => !there.has(rank));
  const gone = !here.length ? "no rank is here" : `rank ${missing.join(", ")} is missing`;
  const said = missing.length ? [make("div", { class: "tag missing" }, `${gone}: takes no sessions`)] :
    [where(here), groupPlan(here)].filter(Boolean).map(each => make("div", { class: "tag" }, each));
  return make("section", { class: "group", "data-group": group_id, "aria-label": `group of ${size} ranks` },
    make("header", {}, make("h3", {}, `group of ${size} ranks`), ...said), ...made);
}

function where(ranks) {
  const wave = Math.max(...ranks.map(each => each.group.wave)), steps = ranks.some(each => ["busy", "idle"].includes(each.group.state));
  return steps ? `in wave ${wave}` : wave ? `parked after wave ${wave}` : "parked, no wave yet";
}

/** What all of its ranks step under: a plan, or a bound within which each chooses its own. */
function groupPlan(ranks) {
  const found = ranks.find(each => each.plan && each.group.state === "busy") ?? ranks.find(each => each.plan);
  if (!found) return "";
  const bound = found.speculation?.max_draft_tokens, { num_steps, num_draft_tokens } = found.plan;
  if (bound) return `plan: at most ${bound} tokens a step`;
  return num_draft_tokens > 1 ? `plan: ${num_steps} deep, ${num_draft_tokens} tokens a step` : "plan: no drafts";
}

/** Every line is there from the start, so that no card grows while its member works. A build is told where it is not the coordinator's. */
function card(member, role, detail, build) {
  const tag = text => make("div", { class: "tag", title: text }, text);
  const made = make("article", { class: `member ${member.state}`, "data-member": member.name, "data-state": member.state, title: [member.address, member.build, member.why].filter(Boolean).join(" · ") },
    make("h3", { title: member.name }, member.name), tag([role, detail].filter(Boolean).join(" · ")));
  if (member.state !== "serving") made.append(make("div", { class: "state" }, member.state + (member.why ? `: ${member.why}` : "")));
  if (!isHere(member)) return made;
  if (member.build !== build) made.append(make("div", { class: "tag other", title: `the coordinator is ${build}` }, `build ${member.build || "–"}`));
  if (member.group) made.append(make("div", { class: `rank ${member.group.state}` }, [`rank ${member.group.rank}`, member.group.state].filter(Boolean).join(" · ")));
  made.append(meter("sessions", member.sessions, member.max_sessions, `${member.sessions}/${member.max_sessions}`));
  if (member.total_pages) {
    const share = member.used_pages / member.total_pages;
    made.append(meter("KV", share, 1, `${Math.round(share * 100)} %`));
  }
  if (member.adapters?.length) made.append(adapters(member.adapters));
  if (role === "verifier") made.append(tag(lengthOf(member.speculation)));
  made.append(tag(`${speed(member).toFixed(0)} ${role === "verifier" ? "steps/s" : "expansions/s"} · ${member.step_ms.toFixed(1)} ms each`));
  return made;
}

/** How many LoRA adapters there are, and those in use, the most used first; all of them are in the title. */
function adapters(all) {
  const used = all.filter(each => each.sessions).sort((a, b) => b.sessions - a.sessions).map(each => `${each.name} ${each.sessions}`);
  const each = one => `${one.name}: rank ${one.rank || "–"}, ${one.digest.slice(0, 12)}, ${plural(one.sessions, "session")}`;
  return make("div", { class: "tag", "data-adapters": all.length, title: all.map(each).join("\n") }, `${plural(all.length, "adapter")} · ${used.join(", ") || "none in use"}`);
}

/** What drafts bring, or why there are none. */
function lengthOf(report) {
  const length = report?.accept_length ? report.accept_length.toFixed(2) : "–", hits = report?.accept_length ? `${Math.round(100 * report.hit_rate)} %` : "–";
  return `accept length ${length} · ${report?.no_drafts ?? `hits ${hits}`}`;
}

function meter(label, value, most, said) {
  const bar = make("b");
  bar.style.width = `${Math.min(100, 100 * value / most)}%`;
  return make("div", { class: "meter" }, label, make("i", { "aria-hidden": "true" }, bar), make("span", {}, said));
}

/** Steps a second of a member, over the latest samples that know it. */
function speed(member) {
  const of = sample => [...sample.verifiers, ...sample.drafters].find(each => each.name === member.name);
  const first = samples.find(of), last = samples[samples.length - 1];
  const seconds = first ? last.now - first.now : 0;
  return seconds > 0 ? Math.max(0, member.steps - of(first).steps) / seconds : 0;
}

function drawLinks(now) {
  const map = document.querySelector("#cluster .map"), frame = map.getBoundingClientRect();
  const at = name => map.querySelector(`[data-member="${CSS.escape(name)}"]`)?.getBoundingClientRect();
  const running = now.requests.filter(each => !each.ended);
  const links = [];
  const link = (from, to, used) => {
    const a = at(from), b = at(to);
    if (!a || !b) return;
    const x = a.right - frame.left, y = a.top + a.height / 2 - frame.top, u = b.left - frame.left, v = b.top + b.height / 2 - frame.top;
    links.push([used, make("svg:path", { class: used ? "link used" : "link", d: `M${x},${y}C${x + 22},${y} ${u - 22},${v} ${u},${v}` })]);
  };
  for (const verifier of now.verifiers.filter(isHere)) {
    link("coordinator", verifier.name, running.some(each => each.verifier === verifier.name));
    for (const drafter of now.drafters.filter(isHere))
      link(verifier.name, drafter.name, running.some(each => each.verifier === verifier.name && each.drafter === drafter.name));
  }
  links.sort((a, b) => a[0] - b[0]);
  fill(map.firstElementChild, ...links.map(each => each[1]));
}

addEventListener("resize", () => samples.length && drawLinks(samples.at(-1)));

// -- The latest requests.

/** Those that run and those that ran, in the order of arrival: a request that ends keeps its row. */
function latest(requests) {
  const ran = requests.filter(each => !each.refused), running = ran.filter(each => !each.ended).slice(-LISTED);
  const ended = ran.filter(each => each.ended).slice(0, LISTED - running.length);
  return [...running, ...ended].sort((a, b) => b.number - a.number);
}

function showRequests(now) {
  const focused = document.activeElement?.dataset?.watch;
  const open = now.requests.filter(each => !each.ended);
  $("more").textContent = open.length > LISTED ? `${open.length - LISTED} more are on their way; choose one above the tree.` : "";
  fill($("requests").tBodies[0], ...padded(latest(now.requests).map(requestRow), LISTED, 5));
  const refused = now.requests.filter(each => each.refused).map(refusedRow);
  fill($("refused").tBodies[0], ...padded(refused.length ? refused : [make("tr", {}, make("td", { colspan: 3 }, "none"))], REFUSED, 3));
  if (focused) document.querySelector(`[data-watch="${focused}"]`)?.focus();
  showChoice(open);
}

function requestRow(each) {
  const name = each.ended ? each.id : make("button", { "data-watch": each.number, "aria-label": `watch request ${each.id}` }, each.id);
  return make("tr", { class: watched?.number === each.number ? "watched" : "" },
    make("td", { class: "id", title: each.id }, name), stateCell(each), make("td", { class: "right" }, String(each.tokens)),
    make("td", { class: "right wide" }, each.steps ? each.accept_length.toFixed(2) : "–"), make("td", { class: "right" }, each.seconds.toFixed(1)));
}

function refusedRow(each) {
  return make("tr", {}, make("td", { class: "id", title: each.id }, each.id || "–"), stateCell(each), make("td", { class: "right" }, each.seconds.toFixed(1)));
}

function stateCell({ state }) {
  const said = state.replace(/_/g, " ");
  return make("td", { title: said }, said);
}

/** Rows, and empty ones up to a number: none pushes down what is below when it comes. */
function padded(rows, count, columns) {
  const empty = () => make("tr", { class: "empty" }, ...Array.from({ length: columns }, (_, i) => make("td", columns === 5 && i === 3 ? { class: "wide" } : {})));
  return [...rows, ...Array.from({ length: Math.max(0, count - rows.length) }, empty)];
}

function showChoice(open) {
  const value = $("choice").value;
  if (document.activeElement === $("choice")) return;
  const kept = open.some(each => String(each.number) === value) || !value ? [] : [[value, `request ${value}, ended`]];
  const options = [["", "newest request"], ...open.map(each => [String(each.number), each.id]), ...kept];
  fill($("choice"), ...options.map(([key, label]) => make("option", { value: key }, label.slice(0, 40))));
  $("choice").value = value;
}

$("requests").addEventListener("click", event => event.target.dataset.watch && pin(event.target.dataset.watch));
