// The classes as buttons, with keys for the first ten, a search when there are many, and a way to add one.
import { h } from "./dom.js";

const DIGITS = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "0"];
const MANY = 10;

// Which digit gives which class: a class that is a digit has its own, the others have those that are left, in order.
export function keysOf(names) {
  const own = new Map(names.filter((name) => DIGITS.includes(name)).map((name) => [name, name]));
  const left = DIGITS.filter((digit) => !own.has(digit));
  return new Map(names.map((name) => [name, own.get(name) ?? left.shift()]));
}

// choose(name) is called with a class; add(name) with the name of a new one.
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
  const list = h("div", { class: "classes", role: "group", "aria-label": "Classes" }, ...buttons);
  const search = h("input", {
    type: "search", class: "search", placeholder: "Search classes  ( / )", "aria-label": "Search classes", autocomplete: "off",
    oninput: () => {
      const wanted = search.value.trim().toLowerCase();
      for (const button of buttons) button.hidden = !button.dataset.class.toLowerCase().includes(wanted);
    },
    onkeydown: (event) => {
      if (event.key === "Escape") leave();
      if (event.key !== "Enter") return;
      const shown = buttons.filter((button) => !button.hidden);
      if (search.value.trim() && shown.length > 0) {
        leave();
        choose(shown[0].dataset.class);
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
  return { element: h("div", { class: "class-panel" }, search, list, form), search };
}
