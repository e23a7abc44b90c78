// One sample at a time, or a grid of them.
import { classOf, classPanel } from "./classes.js";
import { bodyOf, h, percent, pictureOf, seen } from "./dom.js";

const AHEAD = 6, GRID = 12;
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

export function labelling(app) {
  let queue = [], current = [], focus = 0, busy = false, asked = 0, panel = null;
  const stage = h("div", { class: "stage" });
  const classes = h("div");
  const suggestion = h("p", { class: "suggestion", hidden: true });
  const zoomButton = h("button", { type: "button", class: "plain zoom", "aria-keyshortcuts": "z", onclick: zoom }, h("kbd", {}, "z"), " Zoom");
  const actions = h("div", { class: "actions" },
    h("button", { type: "button", class: "plain", "aria-keyshortcuts": "Backspace", onclick: undo }, h("kbd", {}, "⌫"), " Undo"),
    h("button", { type: "button", class: "plain", "aria-keyshortcuts": "Space", onclick: () => answer(null) }, h("kbd", {}, "space"), " Cannot say"),
    zoomButton);
  const element = h("section", { class: "view label-view", "aria-label": "Label" }, stage, suggestion, actions, classes);
  const size = () => (app.options.grid ? GRID : 1);

  function sample() { return current[focus]; }

  async function refill() {
    const number = ++asked;
    const found = await app.call("next", { client: app.client, n: size() + AHEAD });
    if (number < asked) return; // a later answer is on its way, or here
    const shown = new Set(current.map((item) => item.id)); // of now: the page has gone on meanwhile
    queue = found.items.filter((item) => !shown.has(item.id));
    for (const item of queue.slice(0, AHEAD)) if (item.kind === "image") app.pictures(item.id, 1024).catch(() => {});
  }

  async function advance() {
    const left = () => (queue = queue.filter((item) => !app.answered.has(item.id)));
    if (left().length < size()) {
      current = [];
      await refill();
      left();
    }
    await present(queue.splice(0, size()), 0);
    refill().catch(app.fail);
  }

  // Whatever is pressed belongs to the samples that can be seen: the next ones come when their pictures are here.
  async function present(items, place) {
    stage.setAttribute("aria-busy", "true");
    await Promise.all(items.map((item) => seen(app.pictures, item, 1024)));
    stage.removeAttribute("aria-busy");
    current = items;
    focus = place;
    draw();
  }

  function focusSample() {
    (stage.querySelector(".sample[aria-pressed=true]") ?? stage.querySelector(".sample"))?.focus({ preventScroll: true });
  }

  function draw() {
    const focused = stage.contains(stage.getRootNode().activeElement);
    stage.classList.toggle("grid", size() > 1);
    zoomButton.hidden = sample()?.kind !== "image";
    if (current.length === 0) {
      stage.replaceChildren(h("p", { class: "done", role: "status" }, app.nothing));
      suggestion.hidden = true;
      return;
    }
    stage.replaceChildren(...current.map((item, place) => {
      const text = `Sample ${item.id}`;
      const body = bodyOf(app.pictures, item, 1024, text);
      if (size() === 1) return h("figure", { class: "sample", "data-id": item.id, tabindex: "-1", onclick: item.kind === "image" ? zoom : null }, body, h("figcaption", {}, item.id));
      return h("button", { type: "button", class: "sample cell", "data-id": item.id, "aria-label": `${text}: ${item.said ?? "no label yet"}`,
        "aria-pressed": place === focus, onclick: () => { focus = place; draw(); } }, body, h("span", { class: "said" }, item.said ?? ""));
    }));
    if (focused) focusSample();
    const said = app.options.suggestions ? sample().suggestion : null;
    suggestion.hidden = !said;
    suggestion.replaceChildren(...(said ? ["The model says ", h("strong", {}, said.label), ` (${percent(said.probability)})`] : []));
    for (const button of classes.querySelectorAll(".class")) button.classList.toggle("suggested", Boolean(said) && said.label === button.dataset.class);
  }

  async function answer(label) {
    const item = sample();
    if (busy || !item) return;
    busy = true;
    try {
      await app.answer(label === null ? { id: item.id, label, declined: true } : { id: item.id, label });
      item.said = label ?? "cannot say";
      const open = current.findIndex((other) => !other.said);
      if (open >= 0) {
        focus = open;
        draw();
      } else {
        await advance();
      }
      const next = sample();
      app.say(`${item.said}. ${next ? `Next: ${next.text ?? next.id}` : app.nothing}`);
    } catch (error) {
      app.fail(error);
    } finally {
      busy = false;
    }
  }

  async function undo() {
    if (busy) return;
    busy = true;
    try {
      const { item } = await app.call("undo", { client: app.client });
      if (!item) return app.say("There is nothing to undo in this tab. Correct labels in the gallery.");
      app.answered.delete(item.id);
      const place = current.findIndex((other) => other.id === item.id);
      if (place >= 0) {
        current[place].said = undefined;
        focus = place;
        draw();
      } else {
        queue.unshift(...current.filter((other) => !other.said));
        await present([item, ...queue.splice(0, size() - 1)], 0);
      }
      app.say(`Undone: ${item.id}`);
      app.refresh();
    } catch (error) {
      app.fail(error);
    } finally {
      busy = false;
    }
  }

  function zoom() {
    const item = sample();
    if (!item || item.kind !== "image") return;
    let scale = 1;
    const box = pictureOf(app.pictures, item, null, item.id);
    const dialog = h("dialog", { class: "zoom-dialog", "aria-label": `${item.id}, enlarged`, onclose: () => { dialog.remove(); focusSample(); } });
    const by = (factor) => {
      scale = Math.min(8, Math.max(1, scale * factor));
      box.style.width = `${100 * scale}%`;
      box.style.height = `${100 * scale}%`;
    };
    dialog.append(
      h("div", { class: "zoom-bar" },
        h("button", { type: "button", class: "plain", "aria-label": "Larger", onclick: () => by(1.5) }, "+"),
        h("button", { type: "button", class: "plain", "aria-label": "Smaller", onclick: () => by(1 / 1.5) }, "−"),
        h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, "✕")),
      h("div", { class: "zoom-area" }, box));
    dialog.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "+") by(1.5);
      if (event.key === "-") by(1 / 1.5);
      if (event.key === "z") dialog.close();
    });
    app.root.append(dialog);
    dialog.showModal();
  }

  function key(event) {
    const chosen = classOf(app.classes(), event.key);
    if (chosen !== undefined) answer(chosen);
    else if (event.key === " ") answer(null);
    else if (event.key === "Backspace" || event.key === "u") undo();
    else if (event.key === "z") zoom();
    else if (event.key === "/" && !panel.search.hidden) panel.search.focus();
    else if (size() > 1 && event.key in ARROWS) move(ARROWS[event.key]);
    else return false;
    return true;
  }

  function move([right, down]) {
    const columns = getComputedStyle(stage).gridTemplateColumns.split(" ").length;
    const to = focus + right + down * columns;
    if (to < 0 || to >= current.length) return;
    focus = to;
    draw();
  }

  return {
    element,
    key,
    showClasses() {
      const focused = classes.contains(classes.getRootNode().activeElement);
      panel = classPanel(app.classes(), answer, async (name) => { await app.addClass(name); });
      classes.replaceChildren(panel.element);
      if (focused) focusSample();
    },
    async restart() {
      queue.unshift(...current.filter((item) => !item.said));
      current = [];
      await advance();
    },
    async reset() { // what was fetched before is not asked for any more
      queue = [];
      current = [];
      await advance();
    },
    redraw: draw,
    focusSample,
  };
}
