// One sample at a time, or a grid of them.
import { answerPanel, inWords } from "./answers.js";
import { MANY } from "./classes.js";
import { bodyOf, h, loaded, painted, pause, percent, pictureOf } from "./dom.js";

const AHEAD = 6, GRID = 12;
// The second press of a double press, and the second click of a double click, were meant for the sample before. Nobody
// can have judged a sample that was in sight for less than these milliseconds.
const PRESS = 150, DOUBLE_CLICK = 300;
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

export function labelling(app) {
  let queue = [], current = [], focus = 0, busy = false, asked = 0, panel = null;
  let hand = null; // the event of the latest press or click
  let chosen = new Set(), anchor = null, dragging = false, dragged = false, order = [], stay = app.shown(); // what was shown before a reload
  const stage = h("div", { class: "stage" });
  const classes = h("div");
  const suggestion = h("p", { class: "suggestion", hidden: true });
  const zoomButton = h("button", { type: "button", class: "plain zoom", "aria-keyshortcuts": "z", onclick: zoom }, h("kbd", {}, "z"), " Zoom");
  const actions = h("div", { class: "actions" },
    h("button", { type: "button", class: "plain", "aria-keyshortcuts": "Backspace", onclick: undo }, h("kbd", {}, "⌫"), " Undo"),
    h("button", { type: "button", class: "plain", "aria-keyshortcuts": "Space", onclick: () => answer(null) }, h("kbd", {}, "space"), " Cannot say"),
    zoomButton);
  const element = h("section", { class: "view label-view", "aria-label": "Label" }, stage, suggestion, actions, classes);
  const size = () => (app.options.grid && app.form.task === "classification" ? GRID : 1);

  function sample() { return current[focus]; }

  // Many classes stand in the order of the model's guess, so that the ten likeliest have keys.
  function ordered() {
    const names = app.classes(), guesses = sample()?.guesses;
    if (names.length <= MANY || !guesses) return names;
    const place = new Map(guesses.map((name, i) => [name, i]));
    return [...names].sort((a, b) => (place.get(a) ?? names.length) - (place.get(b) ?? names.length));
  }

  function drawClasses(again) {
    const now = ordered();
    if (!again && now.join("\n") === order.join("\n")) return;
    const focused = classes.contains(classes.getRootNode().activeElement);
    order = now;
    panel = answerPanel(app.form, order, answer, async (name) => { await app.addClass(name); });
    classes.replaceChildren(panel.element);
    if (focused) focusSample();
  }

  async function refill() {
    const number = ++asked;
    const here = current.filter((item) => !item.said).map((item) => item.id); // others must not be given these
    const found = await app.call("next", { client: app.client, n: size() + AHEAD, shown: here.length ? here : stay });
    stay = [];
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
    const pictures = Promise.all(items.map((item) => loaded(app.pictures, item, 1024)));
    await Promise.race([pictures, pause(3000)]);
    stage.removeAttribute("aria-busy");
    current = items;
    delete stage.dataset.ready;
    pictures.then(painted).then(() => appear(items));
    focus = place;
    chosen = new Set();
    anchor = null;
    draw();
    panel?.clear();
    app.remember("skal-shown", size() === 1 ? sample()?.id ?? "" : "");
  }

  // Presses count when the samples have been in sight for a moment, and second clicks a little later.
  function appear(items) {
    for (const [wait, counts] of [[PRESS, "press"], [DOUBLE_CLICK, "press click"]])
      setTimeout(() => { if (current === items) stage.dataset.ready = counts; }, wait);
  }

  function early() {
    const wanted = size() === 1 && hand?.detail > 1 ? "click" : "press";
    return !(stage.dataset.ready ?? "").includes(wanted);
  }

  function focusSample() {
    (stage.querySelector(".sample.here") ?? stage.querySelector(".sample"))?.focus({ preventScroll: true });
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
      return h("button", { type: "button", class: "sample cell", "data-id": item.id,
        "data-place": place }, body, h("span", { class: "said" }, item.said ?? ""),
        item.said ? null : h("span", { class: "hidden" }, "no label yet"));
    }));
    mark();
    if (current.length && size() === 1 && sample().copies) stage.append(h("p", { class: "quiet copies" }, `This file is there ${sample().copies} times; the answer is for all of them.`));
    drawClasses(false);
    if (focused) focusSample();
    const said = app.options.suggestions ? sample().suggestion : null;
    suggestion.hidden = !said;
    suggestion.replaceChildren(...(said ? ["The model says ", h("strong", {}, said.words), said.probability === undefined ? "" : ` (${percent(said.probability)})`] : []));
    for (const button of classes.querySelectorAll(".class")) button.classList.toggle("suggested", Boolean(said) && [said.label].flat().includes(button.dataset.class));
  }

  // Which cells of the grid are chosen: those that were selected, or else the one that has the focus.
  function mark() {
    for (const cell of stage.querySelectorAll(".cell")) {
      const place = Number(cell.dataset.place);
      cell.setAttribute("aria-pressed", chosen.size ? chosen.has(place) : place === focus);
      cell.classList.toggle("here", place === focus);
      cell.tabIndex = place === focus ? 0 : -1;
    }
    if (size() > 1) app.say(chosen.size ? `${chosen.size} selected` : "");
  }

  function select(places, on = true) {
    for (const place of places) {
      if (on && !current[place]?.said) chosen.add(place);
      else chosen.delete(place);
    }
    mark();
  }

  for (const name of ["keydown", "click"]) element.addEventListener(name, (event) => { hand = event; }, true);

  const placeOf = (event) => {
    const cell = event.target.closest?.(".cell");
    return cell ? Number(cell.dataset.place) : null;
  };
  stage.addEventListener("pointerdown", (event) => {
    dragged = false;
    dragging = event.button === 0 && event.pointerType !== "touch" ? placeOf(event) : null; // a finger scrolls
  });
  stage.addEventListener("pointerover", (event) => {
    const place = placeOf(event);
    if (dragging === null || dragging === false || place === null || place === dragging || !event.buttons) return;
    dragged = true;
    focus = place;
    select([dragging, place]);
  });
  stage.addEventListener("click", (event) => {
    const place = placeOf(event);
    dragging = null;
    if (place === null || dragged) return;
    const from = event.shiftKey && anchor !== null ? anchor : place;
    focus = place;
    if (event.shiftKey) select(Array.from({ length: Math.abs(place - from) + 1 }, (_, i) => Math.min(place, from) + i));
    else select([place], !chosen.has(place));
    anchor = place;
  });

  async function answer(label) {
    if (busy || !sample() || early()) return;
    const items = chosen.size ? [...chosen].sort((a, b) => a - b).map((place) => current[place]) : [sample()];
    const item = items[0];
    busy = true;
    try {
      await app.answer({ ids: items.map((each) => each.id), label, declined: label === null });
      for (const each of items) each.said = inWords(label);
      chosen = new Set();
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
      for (const id of item.undone) app.answered.delete(id);
      for (const each of current) if (item.undone.includes(each.id)) each.said = undefined;
      const place = current.findIndex((other) => other.id === item.id);
      if (place >= 0) {
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
    hand = event;
    const taken = panel.key(event);
    if (taken !== false) return taken === true;
    if (event.key === "a" && size() > 1) select(current.keys());
    else if (event.key === "Escape" && chosen.size) select(current.keys(), false);
    else if (event.key === "Enter" && size() > 1) select([focus], !chosen.has(focus));
    else if (event.key === " ") answer(null);
    else if (event.key === "Backspace" || event.key === "u") undo();
    else if (event.key === "z") zoom();
    else if (size() > 1 && event.key in ARROWS) move(ARROWS[event.key]);
    else return false;
    return true;
  }

  function move([right, down]) {
    const columns = getComputedStyle(stage).gridTemplateColumns.split(" ").length;
    const to = focus + right + down * columns;
    if (to < 0 || to >= current.length) return;
    focus = to;
    mark();
    stage.querySelector(".cell.here")?.focus({ preventScroll: true });
  }

  return {
    element,
    key,
    refill,
    showClasses: () => drawClasses(true),
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
