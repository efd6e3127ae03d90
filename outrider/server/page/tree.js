// A round as a picture: the accepted path along the top, rejected drafts below it.

import { depthsOf } from "./tally.js";
import { origin, visible } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const LETTER = 7.2; // width of a letter in the font of the picture
const LONGEST = 14; // letters of a token that are shown
const GAP = 22;
const ROW = 28;
const HEIGHT = 22;
const MOST_ROWS = 9;

/** The SVG of a round; `chosen` is the index of the selected token among the emitted ones. */
export function drawTree(round, chosen) {
  const nodes = visibleNodes(round);
  placeRows(nodes);
  placeColumns(nodes);
  const width = nodes.reduce((most, node) => Math.max(most, node.x + node.width), 0) + 1;
  const height = nodes.reduce((most, node) => Math.max(most, node.row), 0) * ROW + HEIGHT + 2;
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", describe(round));
  const ends = nodes.filter((node) => node.parent);
  ends.sort((a, b) => isAgreed(a) - isAgreed(b)); // the path is drawn over the others
  for (const node of ends) svg.append(link(node));
  for (const node of nodes) svg.append(box(node, chosen));
  return svg;
}

/** The round as a sentence. */
export function describe(round) {
  const said = (node) => `"${round.nodes[node].text}"`;
  const path = round.path.slice(1).map(said);
  const others = round.nodes.map((_, node) => node).filter((node) => !round.path.includes(node));
  const bonus = bonusOf(round);
  return [
    `After ${said(0)}:`,
    path.length ? `accepted ${path.join(", ")};` : "no draft accepted;",
    bonus ? `the target's own "${bonus.text}".` : "the answer ended.",
    others.length ? `Not chosen: ${others.map(said).join(", ")}.` : "",
  ].join(" ").trim();
}

function bonusOf(round) {
  const last = round.emitted.at(-1);
  return last && last.depth === 0 ? last : null;
}

/** The nodes that are drawn, with the bonus token; a wide tree shows how many it leaves out. */
function visibleNodes(round) {
  const depths = depthsOf(round.nodes);
  const made = round.nodes.map((node, index) => {
    const place = round.path.indexOf(index);
    const kind = place < 0 ? "other" : place ? "accepted" : "root";
    return { kind, depth: depths[index], place: place - 1, text: node.text, token: node.token };
  });
  made.forEach((node, index) => (node.parent = made[round.nodes[index].parent] ?? null));
  const bonus = bonusOf(round);
  if (bonus) {
    const tip = made[round.path.at(-1)];
    const place = round.emitted.length - 1;
    made.push({ ...bonus, kind: "bonus", depth: tip.depth + 1, place, parent: tip });
  }
  return withoutExcess(made);
}

/** Remove leaves that were not accepted, from the last to the first. */
function withoutExcess(nodes) {
  const shown = [...nodes];
  const isLeaf = (node) => !shown.some((each) => each.parent === node);
  let numHidden = 0;
  while (shown.filter(isLeaf).length > MOST_ROWS) {
    const victim = shown.findLastIndex((node) => node.kind === "other" && isLeaf(node));
    shown.splice(victim, 1); // the path has only one leaf, so another leaf can be removed
    numHidden += 1;
  }
  if (numHidden) {
    const more = { kind: "more", depth: 1, place: -2, token: 0, parent: shown[0] };
    shown.push({ ...more, text: `and ${numHidden} more` });
  }
  return shown;
}

/** Rows in depth-first order, the accepted path first. */
function placeRows(nodes) {
  const order = { accepted: 0, bonus: 0, other: 1, more: 2 };
  let next = 0;
  const visit = (node) => {
    const children = nodes.filter((each) => each.parent === node);
    children.sort((a, b) => order[a.kind] - order[b.kind]);
    children.forEach(visit);
    node.row = children.length ? children[0].row : next++;
  };
  visit(nodes.find((node) => !node.parent));
}

/** Left edges: each depth is as wide as its longest token. */
function placeColumns(nodes) {
  const widths = [];
  for (const node of nodes) {
    node.label = node.kind === "more" ? node.text : shortened(visible(node.text, node.token));
    node.width = Math.max(24, node.label.length * LETTER + 14);
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  const lefts = [1];
  for (let depth = 1; depth < widths.length; depth++) {
    lefts[depth] = lefts[depth - 1] + widths[depth - 1] + GAP;
  }
  for (const node of nodes) node.x = lefts[node.depth];
}

function shortened(label) {
  const letters = [...label];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}\u2026` : label;
}

function link(node) {
  const from = { x: node.parent.x + node.parent.width, y: middle(node.parent) };
  const to = { x: node.x, y: middle(node) };
  const bend = node.x - GAP / 2;
  const d = `M${from.x} ${from.y} L${node.x - GAP} ${from.y} ` +
    `C${bend} ${from.y} ${bend} ${to.y} ${to.x} ${to.y}`;
  return shape("path", { d, class: `link ${node.kind}` });
}

function isAgreed(node) {
  return Number(node.kind === "accepted" || node.kind === "bonus");
}

function middle(node) {
  return node.row * ROW + HEIGHT / 2 + 1;
}

function box(node, chosen) {
  const group = shape("g", { class: `node ${node.kind}` });
  if (node.place === chosen) group.classList.add("chosen");
  const y = node.row * ROW + 1;
  const size = { x: node.x, y, width: node.width, height: HEIGHT, rx: 6 };
  const text = shape("text", { x: node.x + node.width / 2, y: y + HEIGHT / 2 });
  text.textContent = node.label;
  const title = shape("title", {});
  title.textContent = titleOf(node);
  if (node.kind !== "more") group.append(title, shape("rect", size));
  group.append(text);
  if (node.kind === "accepted") group.dataset.depth = String(Math.min(node.depth, 6));
  return group;
}

function titleOf(node) {
  if (node.kind === "root") return "the token before this round";
  if (node.kind === "other") return `draft depth ${node.depth}, not chosen`;
  return node.kind === "accepted" ? `${origin(node.depth)}, accepted` : origin(0);
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
