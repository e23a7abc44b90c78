// What the model takes for what, on held-out labels: a small picture whose cells open their samples, or for many
// classes a list of mistakes and one of how many of each class are right.
import { h } from "./dom.js";

const WIDEST = 12, WORST = 10;

export function confusion(cells, names, open) {
  if (cells.length === 0) return h("p"); // a sentence beside says what is missing
  const at = new Map(cells.map((cell) => [`${cell.label}\n${cell.predicted}`, cell.n]));
  const words = (label, predicted, n) => (label === predicted
    ? `${n} held-out “${label}” that the model knows`
    : `${n} held-out “${label}” that the model takes for “${predicted}”`);
  const button = (label, predicted, n, content, name = words(label, predicted, n)) => h("button", {
    type: "button", class: label === predicted ? "right" : "wrong", "data-cell": `${label} ${predicted}`,
    "aria-label": `${name}: show`, title: words(label, predicted, n), onclick: () => open(label, predicted),
  }, content);
  const used = names.filter((name) => cells.some((cell) => cell.label === name || cell.predicted === name));
  const allOf = (label) => used.reduce((sum, name) => sum + (at.get(`${label}\n${name}`) ?? 0), 0);
  if (used.length > WIDEST) {
    const worst = cells.filter((cell) => cell.label !== cell.predicted).sort((a, b) => b.n - a.n).slice(0, WORST);
    const counts = used.map((name) => ({ name, right: at.get(`${name}\n${name}`) ?? 0, all: allOf(name) })).filter((each) => each.all > 0);
    counts.sort((a, b) => a.right / a.all - b.right / b.all || b.all - a.all);
    return h("div", {},
      h("ul", { class: "confusions", "aria-label": "What the model mistakes most often" },
        ...worst.map(({ label, predicted, n }) => {
          const text = `${label} → ${predicted}: ${n}`;
          return h("li", {}, button(label, predicted, n, text, `${text}, ${words(label, predicted, n)}`));
        })),
      h("p", { class: "quiet" }, "Held-out labels of each class that the model knows, the worst first:"),
      h("div", { class: "recalls", tabindex: "0", role: "group", "aria-label": "Right of all, for each class" },
        h("ul", {}, ...counts.map(({ name, right, all }) => h("li", {}, `${name}: ${right} of ${all}`)))));
  }
  const most = Math.max(...cells.map((cell) => cell.n));
  const row = (label) => {
    const all = allOf(label);
    const right = at.get(`${label}\n${label}`) ?? 0;
    return h("tr", {}, h("th", { scope: "row", title: label }, label), ...used.map((predicted) => {
      const n = at.get(`${label}\n${predicted}`) ?? 0;
      const cell = n ? button(label, predicted, n, `${n}`) : null;
      cell?.style.setProperty("--bar", `${Math.round(6 * Math.sqrt(n / most))}px`);
      return h("td", {}, cell);
    }), h("td", { class: "of" }, all ? `${right}/${all}` : "–"));
  };
  const heads = used.map((name) => h("th", { scope: "col", title: name }, h("span", {}, name)));
  return h("div", { class: "confusion-box" }, h("table", { class: "confusion" },
    h("caption", {}, "Held-out labels (rows) and what the model says (columns). A number opens its samples."),
    h("thead", {}, h("tr", {}, h("td"), ...heads, h("th", { scope: "col" }, "right"))), h("tbody", {}, ...used.map(row))));
}
