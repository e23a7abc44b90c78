// The classes as buttons, with keys for the first ten, a search when there are many, and a way to add one.
import { h } from "./dom.js";

const DIGITS = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "0"];
export const MANY = 10;

// How a name is searched for: without accents, case, and what stands between words.
export function plain(text) {
  return text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(/[_\-.\s]+/g, " ").trim();
}

// Which digit gives which class: a class that is a digit has its own, the others have those that are left, in order.
export function keysOf(names) {
  const own = new Map(names.filter((name) => DIGITS.includes(name)).map((name) => [name, name]));
  const left = DIGITS.filter((digit) => !own.has(digit));
  return new Map(names.map((name) => [name, own.get(name) ?? left.shift()]));
}

export function classOf(names, digit) {
  return names.find((name) => keysOf(names).get(name) === digit);
}

// choose(name) is called with a class; add(name), if there is one, with the name of a new one.
export function classPanel(names, choose, add) {
  const keys = keysOf(names);
  const buttons = names.map((name) =>
    h(
      "button",
      {
        class: "class", type: "button", "data-class": name,
        "aria-keyshortcuts": keys.get(name), onclick: () => choose(name),
      },
      keys.get(name) === undefined ? null : h("kbd", {}, keys.get(name)),
      h("span", {}, name),
    ),
  );
  // A class has one key, its own: space and Enter mean something else, wherever the focus happens to be.
  const refuse = (event) => {
    const button = event.target.closest(".class");
    if (!button || (event.key !== " " && event.key !== "Enter")) return;
    event.preventDefault();
    event.stopPropagation();
    const own = keys.get(button.dataset.class);
    none.textContent = own === undefined ? "To give this class, press / and write its name." : `To give this class, press ${own}.`;
  };
  const list = h("div", { class: "classes", role: "group", "aria-label": "Classes", onkeydown: refuse, onkeyup: refuse }, ...buttons);
  list.style.setProperty("--letters", Math.min(14, Math.max(...names.map((name) => name.length))));
  const none = h("p", { class: "quiet", role: "status" });
  // what Enter chooses: the name itself, or the first that begins so, or the first that has it in it
  const wanted = () => plain(search.value);
  const best = () => {
    const shown = buttons.filter((button) => !button.hidden);
    const where = (test) => shown.find((button) => test(plain(button.dataset.class)));
    return wanted() ? where((name) => name === wanted()) ?? where((name) => name.startsWith(wanted())) ?? shown[0] : undefined;
  };
  const search = h("input", {
    type: "search", class: "search", placeholder: "Search classes  ( / )", "aria-label": "Search classes", autocomplete: "off",
    oninput: () => {
      for (const button of buttons) button.hidden = !plain(button.dataset.class).includes(wanted());
      for (const button of buttons) button.classList.toggle("best", button === best());
      none.textContent = buttons.every((button) => button.hidden) ? "No class has this in its name." : "";
    },
    onkeydown: (event) => {
      if (event.key === "Escape") leave();
      if (event.key !== "Enter") return;
      const chosen = best();
      if (chosen) {
        leave();
        choose(chosen.dataset.class);
      }
      event.preventDefault();
    },
  });
  function leave() {
    search.value = "";
    search.dispatchEvent(new Event("input"));
    search.blur();
  }
  const name = h("input", { type: "text", class: "new-class", placeholder: "New class", "aria-label": "Name of a new class", autocomplete: "off" });
  const form = h(
    "form",
    { class: "add-class", onsubmit: (event) => { event.preventDefault(); if (name.value.trim()) add(name.value.trim()); } },
    name,
    h("button", { type: "submit", class: "plain" }, "Add class"),
  );
  search.hidden = names.length <= MANY;
  return { element: h("div", { class: "class-panel" }, search, none, list, add ? form : null), search };
}
