// Answers that are no single class: a number, or several classes at once. Enter confirms both.
import { classOf, classPanel } from "./classes.js";
import { h } from "./dom.js";

// A panel for the answers of a form. key(event) says whether it has used a key, or null if the key is a field's own;
// set(label) shows an answer; start() takes the keyboard; clear() is for the next sample.
export function answerPanel(form, names, choose, add) {
  if (form.task === "regression") return numberPanel(form, choose);
  if (form.task === "multilabel") return togglePanel(names, choose);
  const panel = classPanel(names, choose, add);
  return {
    ...panel,
    key(event) {
      const name = classOf(names, event.key);
      if (name !== undefined) choose(name);
      else if (event.key === "/" && !panel.search.hidden) panel.search.focus();
      else return false;
      return true;
    },
    set(label) {
      for (const button of panel.element.querySelectorAll(".class")) button.setAttribute("aria-pressed", button.dataset.class === label);
    },
    start() {},
    clear() {},
  };
}

// An answer in words.
export function inWords(label) {
  if (label === null) return "cannot say";
  return Array.isArray(label) ? label.join(", ") || "none of them" : String(label);
}

function numberPanel({ unit, low, high }, choose) {
  const words = h("p", { class: "quiet answer-words", role: "status" });
  const field = h("input", { type: "text", inputmode: "decimal", class: "number", autocomplete: "off", "aria-label": unit ? `Number, in ${unit}` : "Number" });
  const step = low !== null && high !== null ? 10 ** Math.floor(Math.log10((high - low) / 100)) : 1;
  const slider = low !== null && high !== null ? h("input", { type: "range", class: "slider", min: low, max: high, step, "aria-label": "Number, to slide" }) : null;
  const bounds = [low === null ? "" : `at least ${low}`, high === null ? "" : `at most ${high}`].filter(Boolean).join(" and ");
  const number = () => (field.value.trim() === "" ? NaN : Number(field.value.trim().replace(",", ".")));

  function confirm() {
    const value = number();
    if (!Number.isFinite(value) || (low !== null && value < low) || (high !== null && value > high)) words.textContent = `Write a number${bounds ? `, ${bounds}` : ""}.`;
    else choose(value);
  }

  field.addEventListener("input", () => {
    words.textContent = "";
    if (slider && Number.isFinite(number())) slider.value = number();
  });
  slider?.addEventListener("input", () => { field.value = slider.value; words.textContent = ""; });
  const button = h("button", { type: "button", class: "plain confirm", "aria-keyshortcuts": "Enter", onclick: confirm }, h("kbd", {}, "Enter"), " Confirm");
  const set = (label) => {
    words.textContent = "";
    field.value = label ?? "";
    if (slider) slider.value = label ?? (low + high) / 2;
  };
  return {
    element: h("div", { class: "class-panel" }, h("div", { class: "number-row" }, field, unit ? h("span", { class: "unit" }, unit) : null, button), slider, words),
    // A figure goes into the field, wherever the focus is; the field keeps the keys that it needs.
    key(event) {
      const inside = event.target === field;
      if (event.key === "Enter") confirm();
      else if (event.key === " " || (event.key === "Backspace" && field.value === "")) return false;
      else if (!inside && /^[-\d.,]$/.test(event.key)) {
        field.value = event.key;
        field.dispatchEvent(new Event("input"));
      }
      else if (!inside && event.key === "Backspace") field.value = field.value.slice(0, -1);
      else return inside ? null : false;
      if (!inside && event.key !== "Enter") field.focus();
      return true;
    },
    set,
    start: () => field.focus(),
    clear: () => set(null),
  };
}

function togglePanel(names, choose) {
  let on = new Set();
  const mark = () => { for (const button of panel.element.querySelectorAll(".class")) button.setAttribute("aria-pressed", on.has(button.dataset.class)); };
  const toggle = (name) => {
    if (!on.delete(name)) on.add(name);
    mark();
  };
  const panel = classPanel(names, toggle, null);
  const confirm = () => choose(names.filter((name) => on.has(name)));
  const button = h("button", { type: "button", class: "plain confirm", "aria-keyshortcuts": "Enter", onclick: confirm }, h("kbd", {}, "Enter"), " Confirm");
  panel.element.append(button);
  const set = (label) => {
    on = new Set(label ?? []);
    mark();
  };
  mark();
  return {
    ...panel,
    key(event) {
      const name = classOf(names, event.key);
      if (name !== undefined) toggle(name);
      else if (event.key === "Enter") confirm();
      else if (event.key === "/" && !panel.search.hidden) panel.search.focus();
      else return false;
      return true;
    },
    set,
    start: () => button.focus(),
    clear: () => set(null),
  };
}
