// -- The tree. The likeliest child, or the one on the accepted path, continues its parent's line; the others hang below.

const ROWS = 13, SMALLEST = 1.6;
const MARKS = { accepted: "✓", rejected: "✕", bonus: "+", root: "", drafted: "" };
const RANK = { accepted: 0, bonus: 0, rejected: 1, drafted: 1, root: 0 };
const drawn = new Map();
const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, font) {
  pen.font = font;
  return pen.measureText(text).width;
}

/** Places for the nodes of a snapshot: those that find room, and how many did not. */
function layOut(snapshot) {
  const mono = "13px " + getComputedStyle(document.documentElement).getPropertyValue("--mono");
  const all = snapshot.nodes.map((node, i) => ({ ...node, i, below: [], depth: 0 }));
  for (const node of all) if (node.parent >= 0) {
    node.up = all[node.parent];
    node.depth = node.up.depth + 1;
    node.up.below.push(node);
  }
  for (const node of all) {
    node.below.sort((a, b) => RANK[a.state] - RANK[b.state] || (b.survival ?? 1) - (a.survival ?? 1));
    node.label = visible(node.text);
    node.share = node.survival === null || node.state === "root" ? "" : percent(node.survival);
    const mark = MARKS[node.state] ? 14 : 0, share = node.share ? 30 : 0;
    node.width = Math.ceil(widthOf(node.label, mono) + 18 + mark + share);
  }
  const across = $("tree").clientWidth, least = across < 640 ? 20 : 44;
  const kept = prune(all), columns = columnsOf(kept, across * SMALLEST, least);
  for (const node of kept) if (node.depth >= columns.length) kept.delete(node);
  const spare = across - columns.reduce((sum, width) => sum + width, 4);
  const gap = Math.max(least, Math.min(84, spare / Math.max(columns.length - 1, 1)));
  const lefts = [2];
  columns.forEach((width, i) => lefts.push(lefts[i] + width + gap));
  let rows = 0;
  const place = node => {
    node.x = lefts[node.depth];
    const below = node.below.filter(each => kept.has(each));
    if (!below.length) node.row = rows++;
    below.forEach(place);
    if (below.length) node.row = below[0].row;
  };
  if (all.length) place(all[0]);
  return { nodes: [...kept], rows, width: lefts[columns.length] - gap + 2, hidden: snapshot.hidden + all.length - kept.size };
}

/** The widths of the depths that can still be read when they are drawn as small as need be. */
function columnsOf(nodes, most, gap) {
  const columns = [];
  for (const node of nodes) columns[node.depth] = Math.max(columns[node.depth] ?? 0, node.width);
  while (columns.length > 2 && columns.reduce((sum, width) => sum + width + gap, 0) > most) columns.pop();
  return columns;
}

/** Without the least likely leaves that nobody has verified, until the rest fits. */
function prune(all) {
  const kept = new Set(all);
  const leaf = node => !node.below.some(each => kept.has(each));
  for (;;) {
    const leaves = [...kept].filter(leaf);
    const worst = leaves.filter(node => node.state === "drafted").sort((a, b) => a.survival - b.survival)[0];
    if (leaves.length <= ROWS || !worst) return kept;
    kept.delete(worst);
  }
}

function percent(share) {
  return share < .01 ? "<1%" : `${Math.round(share * 100)}%`;
}

function draw(snapshot) {
  if (!$("tree").clientWidth) return snapshot.hidden; // nothing is drafted: the tree is not on the page
  const { nodes, rows, width, hidden } = layOut(snapshot);
  const tree = $("tree"), across = tree.clientWidth, height = tree.clientHeight;
  const pitch = Math.max(26, Math.min(36, (height - 8) / Math.max(rows, 1)));
  const scale = Math.max(1, width / across, (rows * pitch + 4) / height);
  tree.setAttribute("viewBox", `0 0 ${across * scale} ${height * scale}`);
  tree.setAttribute("preserveAspectRatio", "xMinYMin");
  const alive = new Set(nodes.map(node => node.key));
  for (const [key, each] of drawn) if (!alive.has(key)) {
    drawn.delete(key);
    for (const gone of [each.node, each.edge]) {
      gone.style.opacity = 0;
      gone.removeAttribute("data-state");
      setTimeout(() => gone.remove(), 230);
    }
  }
  for (const node of nodes) {
    node.y = 4 + (node.row + .5) * pitch;
    put(node, Math.min(26, pitch - 4));
  }
  return hidden;
}

function put(node, tall) {
  let each = drawn.get(node.key);
  if (!each) {
    each = { node: make("svg:g"), edge: make("svg:path") };
    drawn.set(node.key, each);
    $("nodes").append(each.node);
    $("edges").append(each.edge);
  }
  const { state, label, width, share } = node, mark = MARKS[state];
  each.node.setAttribute("class", `node ${state}`);
  each.node.setAttribute("data-state", state);
  each.node.setAttribute("data-token", node.text);
  each.node.style.transform = `translate(${node.x}px, ${node.y}px)`;
  const looks = `${state}|${label}|${share}|${width}|${tall}`;
  if (each.looks !== looks) {
    each.looks = looks;
    const radius = { drafted: tall / 2, bonus: 2 }[state] ?? 6;
    each.node.replaceChildren(
      make("svg:title", {}, `${JSON.stringify(node.text)}: ${state}${share ? `, survival ${share}` : ""}`),
      make("svg:rect", { class: "box", x: 0, y: -tall / 2, width, height: tall, rx: radius }),
      make("svg:rect", { class: "inner", x: 3, y: 3 - tall / 2, width: width - 6, height: tall - 6, rx: 1 }),
      make("svg:text", { class: "mark", x: 8, y: 0 }, mark),
      make("svg:text", { class: "token", x: mark ? 22 : 9, y: 0 }, label),
      make("svg:text", { class: "share", x: width - 8, y: 0 }, share));
  }
  each.edge.setAttribute("class", `edge ${state}`);
  if (!node.up) {
    each.edge.removeAttribute("d");
    each.edge.style.removeProperty("d");
    return;
  }
  const x = node.up.x + node.up.width, y = node.up.y, u = node.x, v = node.y, bend = (x + u) / 2;
  const path = `M${x},${y}C${bend},${y} ${bend},${v} ${u},${v}`;
  each.edge.setAttribute("d", path);
  each.edge.style.setProperty("d", `path("${path}")`);
}

function list(snapshot) {
  const depths = [];
  const rows = snapshot.nodes.map((node, i) => {
    depths[i] = node.parent < 0 ? 0 : depths[node.parent] + 1;
    const share = node.survival === null ? "" : percent(node.survival);
    return make("tr", {}, make("td", {}, String(depths[i])), make("td", {}, JSON.stringify(node.text)), make("td", {}, node.state), make("td", { class: "right" }, share));
  });
  $("listing").querySelector("tbody").replaceChildren(...rows);
}
