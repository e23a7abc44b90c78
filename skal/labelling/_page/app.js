// The whole page: views, progress and keys, on top of a transport.
import { confusion } from "./confusion.js";
import { curve } from "./curve.js";
import { h } from "./dom.js";
import { finishing } from "./finish.js";
import { gallery } from "./gallery.js";
import { labelling } from "./labelling.js";
import { team } from "./team.js";

const LOST = "The server does not answer. Every label up to the last sample is on the disk; this one may not be. The page goes on by itself when the server is back.";

const HELP = [
  ["digits", "give the class with that key"], ["space", "cannot say"], ["⌫ or u", "undo"], ["z", "zoom"],
  ["/", "search classes, then Enter"], ["arrows", "move in the grid"], ["Enter, a, Esc", "in the grid: select one, all, none; then a class labels them at once"], ["Enter", "where a sample has a number, or several classes: confirm"], ["g", "gallery, and back"], ["?", "this help"],
];

export async function mount(root, transport, keySource) {
  root.classList.add("skal");
  const client = remembered("skal-client", () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16)).join(""));
  const cache = new Map();
  let names = [], view = "label", polling = null, mode = "learn", lost = false;

  function forget(key) {
    cache.get(key).then(URL.revokeObjectURL, () => {}); // the browser keeps a picture until it is told not to
    cache.delete(key);
  }

  const app = {
    root, client, form: { task: "classification" }, answered: new Set(), finalFile: transport.finalFile, nothing: "Nothing is left to label.",
    options: { grid: remembered("skal-grid", () => "") === "on", suggestions: false },
    classes: () => names,
    call: async (method, given = {}) => {
      try {
        const answer = await transport.call(method, given);
        if (!lost) banner.hidden = true;
        return answer;
      } catch (error) {
        if (error instanceof TypeError) error = new Error(LOST);
        app.fail(error);
        throw error;
      }
    },
    pictures(id, size) {
      const key = `${size} ${id}`;
      if (!cache.has(key)) {
        cache.set(key, transport.picture(id, size));
        if (cache.size > 400) forget(cache.keys().next().value);
      }
      return cache.get(key);
    },
    async answer(given) {
      await app.call("answer", { ...given, client });
      for (const id of given.ids) {
        if (given.label === null && !given.declined) app.answered.delete(id); // a label taken back: it may be asked for again
        else app.answered.add(id);
      }
      app.refresh();
    },
    async addClass(name) {
      names = (await app.call("add_class", { name })).classes;
      labels.showClasses();
      app.refresh();
    },
    remember,
    shown: () => [remembered("skal-shown", () => "")].filter(Boolean),
    say(text) { live.textContent = text; },
    fail(error) {
      banner.replaceChildren(error.message);
      banner.hidden = false;
    },
    refresh() {
      clearTimeout(polling);
      polling = setTimeout(poll, 120);
    },
  };

  const live = h("p", { class: "hidden", "aria-live": "polite" });
  const banner = h("p", { class: "banner", role: "alert", hidden: true });
  const labels = labelling(app), pictures = gallery(app), ending = finishing(app);
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Share of the samples that is labelled" });
  const numbers = h("p", { class: "numbers" });
  const doing = h("p", { class: "doing", role: "status" });
  const features = h("progress", { class: "features", max: 1, value: 0, hidden: true, "aria-label": "Share of the features that is computed" });
  const note = h("p", { class: "note", hidden: true });
  const answers = h("h2", {}, "Classes"), extent = h("p", { class: "quiet extent" });
  const counts = h("ul", { class: "counts", tabindex: "0", "aria-label": "Labels of each class" });
  const plot = h("div", { class: "plot" });
  const mistakes = h("div", { class: "mistakes" });
  const people = team(() => { pictures.choose("disputed", null); open("gallery"); });
  let drawn = null;
  const advice = h("p", { class: "advice", role: "status", hidden: true });
  const problems = h("details", { class: "problems", hidden: true });
  const tabs = ["label", "gallery"].map((name) =>
    h("button", { type: "button", class: "tab", "data-view": name, onclick: () => open(name) }, name === "label" ? "Label" : "Gallery"));
  const option = (text, name, change) => {
    const input = h("input", { type: "checkbox", "data-option": name, onchange: () => { app.options[name] = input.checked; change(); } });
    input.checked = app.options[name];
    return h("label", { class: "option" }, input, h("span", {}, text));
  };
  const options = h("div", { class: "options" },
    option("Grid", "grid", () => { remember("skal-grid", app.options.grid ? "on" : ""); labels.restart().catch(app.fail); }),
    option("Suggestions (they bias)", "suggestions", () => labels.redraw()));
  const help = h("dialog", { class: "help", "aria-label": "Keys", onclose: returnFocus },
    h("h2", {}, "Keys"), h("dl", {}, ...HELP.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("button", { type: "button", class: "plain", onclick: () => help.close() }, "Close"));
  const finish = h("button", { type: "button", class: "plain finish", onclick: end }, "Finish");
  const main = h("main", {}, banner, labels.element, pictures.element);
  root.replaceChildren(
    h("header", { class: "top" }, h("h1", { class: "name" }, "skal label"), h("nav", { "aria-label": "Views" }, ...tabs),
      bar, h("button", { type: "button", class: "plain", "aria-keyshortcuts": "?", onclick: () => help.showModal() }, "Keys"), finish),
    h("div", { class: "columns" }, main,
      h("aside", { "aria-label": "Progress" }, numbers, doing, features, advice, note, h("h2", {}, "How good is the model?"), plot, ...ending.measures, mistakes, ending.element, people.element,
        h("h2", {}, "Options"), options, answers, extent, counts, problems)),
    live, help);

  function open(name) {
    view = name;
    labels.element.hidden = name !== "label";
    pictures.element.hidden = name !== "gallery";
    for (const tab of tabs) tab.setAttribute("aria-current", tab.dataset.view === name ? "page" : "false");
    if (name === "gallery") pictures.open();
  }

  // A button that was clicked must not keep the focus: the next space bar or Enter would press it once more.
  function returnFocus(event) {
    const stays = "input[type=text], input[type=search], select, dialog[open]";
    if (view === "label" && !event?.target.closest?.(stays)) labels.focusSample();
  }

  async function end() {
    const status = await app.call("status");
    await app.call("finish");
    clearTimeout(polling);
    root.replaceChildren(h("main", { class: "over" }, h("h1", {}, "Finished"),
      h("p", { role: "status" }, `Every label is on the disk: ${status.labelled} of ${status.samples} samples have one. You can close this page.`),
      h("p", {}, status.final?.words ?? ""),
      h("p", { class: "quiet" }, status.final ? "Who labelled what, with the certificate: " : "Write them in another format with ",
        h("code", {}, `skal export ${status.folder} --to ${status.final ? "final" : "csv"}`))));
  }

  async function poll() {
    try {
      const status = await app.call("status");
      show(status);
      polling = setTimeout(poll, status.doing ? 1500 : 8000);
    } catch {
      polling = setTimeout(poll, 8000); // the banner says why
    }
  }

  // The page says within three seconds that the server is gone, and goes on when it is back.
  async function watch() {
    const alive = await transport.alive();
    if (!alive && !lost) {
      lost = true;
      app.fail(new Error(LOST));
    } else if (alive && lost) {
      lost = false;
      banner.hidden = true;
      app.refresh();
      (root.querySelector(".sample") ? labels.refill : labels.restart)().catch(app.fail); // a new server does not know who shows what
    }
    if (root.contains(banner)) setTimeout(watch, transport.period);
  }

  function show(status) {
    app.form = status.form;
    options.firstElementChild.hidden = app.form.task !== "classification"; // the grid
    answers.textContent = app.form.task === "regression" ? "Answers" : "Classes";
    extent.textContent = status.numbers ?? "";
    const now = status.classes.map((each) => each.name);
    if (now.join("\n") !== names.join("\n")) { // another tab may have added one
      names = now;
      labels.showClasses();
    }
    bar.max = status.samples;
    bar.value = status.labelled + status.declined;
    numbers.replaceChildren(h("strong", {}, `${status.labelled}`), ` of ${status.samples} labelled · ${status.declined} skipped · ${Math.round(status.per_minute)}\u00a0per\u00a0minute${status.time_left ? ` · ${status.time_left}` : ""}${status.doubtful ? ` · ${status.doubtful} doubtful` : ""}`);
    doing.textContent = status.doing ? `${status.doing[0].toUpperCase()}${status.doing.slice(1)}… you can go on.` : `Model: ${status.model}. Chosen by ${status.strategy}.`;
    features.hidden = !status.progress;
    if (status.progress) [features.max, features.value] = [status.progress.total, status.progress.done];
    note.hidden = !status.note;
    note.textContent = status.note ?? "";
    advice.hidden = !status.advice;
    advice.textContent = status.advice ?? "";
    plot.replaceChildren(curve(status));
    const cells = JSON.stringify([status.confusion, now]);
    if (cells !== drawn) { // a cell that has the focus keeps it
      drawn = cells;
      mistakes.replaceChildren(confusion(status.confusion, now, (label, predicted) => { pictures.choose("new", [label, predicted]); open("gallery"); }));
    }
    people.show(status);
    pictures.offerDisputes(Boolean(status.team?.decides));
    finish.hidden = Boolean(status.team) && !status.team.decides;
    ending.show(status);
    app.nothing = status.check ? "The last check is answered. It is being judged." : status.final ? status.final.words : "Nothing is left to label.";
    if (ending.mode(status) !== mode) { // other samples are asked for now
      mode = ending.mode(status);
      labels.reset().catch(app.fail);
    }
    const most = Math.max(1, ...status.classes.map((each) => each.count));
    counts.replaceChildren(...status.classes.map((each) =>
      h("li", {}, h("span", { class: "count-name", title: each.name }, each.name), h("meter", { min: 0, max: most, value: each.count, "aria-hidden": "true" }), h("span", { class: "count" }, `${each.count}`))));
    const wrong = [...status.unreadable.map((id) => `${id} cannot be read`), ...(status.left_out ? [status.left_out] : []), ...(status.error ? [`In the background: ${status.error}`] : [])];
    problems.hidden = wrong.length === 0;
    const opened = problems.open;
    problems.replaceChildren(h("summary", {}, `${wrong.length} ${wrong.length === 1 ? "problem" : "problems"}`), h("ul", {}, ...wrong.map((text) => h("li", {}, text))));
    problems.open = opened;
  }

  for (const name of ["pointerup", "click"]) root.addEventListener(name, (event) => { if (name === "pointerup" || event.detail > 0) returnFocus(event); });
  keySource.addEventListener("keydown", (event) => {
    if (root.querySelector("dialog[open]")) return; // its keys are its own
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input[type=text]:not(.number), input[type=search], select, dialog")) return;
    if (!root.contains(event.target) && keySource !== document) return;
    // a button that has the focus keeps its own space bar and Enter
    if ((event.key === " " || event.key === "Enter") && event.target.closest?.("button, summary, input:not(.number, .slider)") && !event.target.closest(".sample")) return;
    let used = true;
    if (event.repeat && !event.key.startsWith("Arrow")) used = event.key === " "; // held down: no second answer, and no scrolling
    else if (event.key === "?") help.showModal();
    else if (event.key === "g") open(view === "label" ? "gallery" : "label");
    else used = view === "label" && labels.key(event);
    if (used) {
      event.preventDefault();
      event.stopPropagation(); // a notebook has keys of its own
    }
  });

  open("label");
  show(await app.call("status"));
  labels.showClasses();
  await labels.restart();
  app.refresh();
  if (transport.alive) watch();
}

function remembered(name, make) {
  try {
    const found = sessionStorage.getItem(name) ?? make();
    sessionStorage.setItem(name, found);
    return found;
  } catch { // a frame that may not keep anything
    return make();
  }
}

function remember(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch { /* see above */ }
}
