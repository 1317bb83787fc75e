// -- One request, watched.

const KEPT = 300, STAY_MS = 1500, TEXT_KEPT = 4000, CALM_STEPS = 12;
let watched = null, source = null, paused = false, drawing = false, shown = -1;
let snapshots = [], pieces = 0;

function pin(number) {
  if (![...$("choice").options].some(each => each.value === number)) $("choice").append(make("option", { value: number }, `request ${number}`));
  $("choice").value = number;
  const found = samples[samples.length - 1]?.requests.find(each => String(each.number) === number);
  if (found) watch(found);
}

/** Unless a request was chosen, the newest that runs is watched, a moment after the one before has ended. */
function chooseByItself(now) {
  if ($("choice").value || paused) return;
  const newest = now.requests.filter(each => !each.ended).at(-1);
  if (newest && (!watched || (watched.endedAt && performance.now() - watched.endedAt > STAY_MS))) watch(newest);
}

function watch(request) {
  if (watched?.number === request.number && !watched.endedAt) return;
  source?.close();
  watched = { number: request.number, id: request.id, endedAt: 0 };
  snapshots = [];
  pieces = 0;
  shown = -1;
  pause(false);
  $("text").replaceChildren();
  caption(`Request ${request.id}: waiting for its first step.`);
  source = new EventSource(`watch/${request.number}`);
  source.onmessage = message => take(JSON.parse(message.data));
  source.onerror = () => end("the stream broke");
}

function take(snapshot) {
  write(snapshot.text ?? []);
  snapshot.pieces = pieces;
  if (snapshot.kind === "end") return end(snapshot.why);
  if (snapshot.kind === "growing" && snapshots.at(-1)?.kind === "growing") snapshots.pop();
  snapshots.push(snapshot);
  if (snapshots.length > KEPT) {
    snapshots.shift();
    shown -= 1;
  }
  $("history").max = snapshots.length - 1;
  showLatest();
}

/** What comes within one frame is drawn once. */
function showLatest() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!paused && snapshots.length) show(snapshots.length - 1);
    showDrafts();
  });
}

function end(why) {
  source?.close();
  if (!watched || watched.endedAt) return;
  watched.endedAt = performance.now();
  if (snapshots.length) show(paused ? shown : snapshots.length - 1);
  else caption(`Request ${watched.id} is over${why ? `: ${why}` : ""}.`);
}

// -- The tree takes no room while nothing is drafted; then it says why.

/** Whether the latest steps of the watched request had drafts; null: too few have been seen. */
function drafting() {
  const latest = snapshots.slice(-CALM_STEPS);
  if (latest.some(({ nodes }) => nodes.some(each => ["accepted", "rejected", "drafted"].includes(each.state)))) return true;
  return latest.length >= CALM_STEPS || (latest.length && watched?.endedAt) ? false : null;
}

function showDrafts() {
  const now = drafting(), panel = $("speculation");
  if (!paused && now !== null && panel.dataset.drafts !== (now ? "yes" : "no")) {
    panel.dataset.drafts = now ? "yes" : "no";
    if (now && shown >= 0) show(shown);
  }
  const said = whyNoDrafts();
  if ($("no-drafts").textContent !== said) $("no-drafts").textContent = said;
}

/** One sentence; the verifier's own where it has one. */
function whyNoDrafts() {
  const here = (samples.at(-1)?.verifiers ?? []).filter(isHere), running = samples.at(-1)?.requests.find(each => each.number === watched?.number && !each.ended);
  const verifier = here.find(each => each.name === running?.verifier) ?? here.find(each => each.speculation?.no_drafts);
  const why = snapshots.findLast(each => each.kind === "step")?.no_drafts ?? verifier?.speculation?.no_drafts;
  if (why) return why;
  if (running && !running.drafter) return `Request ${running.id} runs without a drafter.`;
  return running ? `Nothing has been drafted for request ${running.id} so far.` : "Nothing is drafted: no request is running.";
}

function write(text) {
  const box = $("text"), follow = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  for (const [piece, draft] of text) {
    box.append(make("span", { class: draft ? "draft" : "bonus", "data-piece": pieces }, piece));
    pieces += 1;
  }
  while (box.textContent.length > TEXT_KEPT) box.firstElementChild.remove();
  if (follow) box.scrollTop = box.scrollHeight;
}

/** What was committed after the step that is shown is there, but faint. */
function showText(upTo) {
  const box = $("text");
  let latest = null;
  for (const piece of box.children) {
    const later = Number(piece.dataset.piece) >= upTo;
    piece.classList.toggle("later", later);
    if (!later) latest = piece;
  }
  if (paused && latest) box.scrollTop = latest.offsetTop - box.clientHeight * .7;
}

function pause(yes) {
  paused = yes;
  $("pause").textContent = yes ? "Resume" : "Pause";
  $("pause").setAttribute("aria-pressed", String(yes));
  if (!yes && snapshots.length) show(snapshots.length - 1);
}

$("pause").addEventListener("click", () => pause(!paused));
$("history").addEventListener("input", () => {
  const index = Number($("history").value);
  pause(true);
  show(index);
});
$("choice").addEventListener("change", () => ($("choice").value ? pin($("choice").value) : (watched = watched?.endedAt ? watched : null)));
$("listing").addEventListener("toggle", () => shown >= 0 && list(snapshots[shown]));
addEventListener("resize", () => shown >= 0 && show(shown));

function caption(text) {
  $("caption").textContent = text;
}

function show(index) {
  if (!snapshots.length) return;
  shown = Math.max(0, Math.min(index, snapshots.length - 1));
  $("history").value = shown;
  const snapshot = snapshots[shown], parts = [`Request ${watched.id}`];
  if (snapshot.kind === "step") {
    parts.push(`step ${snapshot.step}`, `${snapshot.verified} verified, ${snapshot.accepted} accepted, ${snapshot.committed} committed`,
      `accept length ${snapshot.accept_length.toFixed(2)} so far`);
    if (snapshot.left_out) parts.push(`${snapshot.left_out} steps not shown before this one`);
  } else parts.push("growing below the new root");
  showText(snapshot.pieces);
  const hidden = draw(snapshot);
  if (hidden) parts.push(`${hidden} more drafted`);
  if (watched.endedAt && shown === snapshots.length - 1) parts.push("over");
  caption(parts.join(" · "));
  $("history").setAttribute("aria-valuetext", parts.slice(1, 3).join(", "));
  if ($("listing").open) list(snapshot);
}

