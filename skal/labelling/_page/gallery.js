// What has been labelled, and corrections by click.
import { answerPanel } from "./answers.js";
import { bodyOf, h, percent, pictureOf } from "./dom.js";

const PAGE = 60;
const BIAS = "Held-out labels that are corrected only where a model disagrees make the model look better than it is. The last check is not affected.";

export function gallery(app) {
  const order = h("select", { "aria-label": "Order", onchange: () => show(0) },
    h("option", { value: "new" }, "Newest first"), h("option", { value: "doubtful" }, "Doubtful labels first"));
  const disputes = h("option", { value: "disputed" }, "To be decided");
  let cell = null;
  const behind = h("button", { type: "button", class: "plain behind", hidden: true, onclick: () => { cell = null; show(0); } });
  const filter = h("select", { "aria-label": "Class", onchange: () => show(0) });
  const list = h("ul", { class: "gallery", "aria-label": "Labelled samples" });
  const count = h("p", { class: "quiet", role: "status" });
  const more = h("button", { type: "button", class: "plain", onclick: () => show(list.childElementCount) }, "Show more");
  const empty = h("p", { class: "done", hidden: true });
  const note = h("p", { class: "quiet judged" });

  async function show(offset) {
    const asked = { offset, limit: PAGE, order: order.value, cell };
    behind.hidden = cell === null;
    behind.textContent = cell === null ? "" : `Held out: ${cell[0]}, and the model says ${cell[1]} ✕`;
    if (filter.value !== "*") asked.label = filter.value;
    const found = await app.call("gallery", asked);
    if (offset === 0) list.replaceChildren();
    list.append(...found.items.map(card));
    count.textContent = `${found.total} ${found.total === 1 ? "sample" : "samples"}`;
    empty.hidden = found.total > 0;
    empty.textContent = order.value === "disputed" ? "Nothing is to be decided." : filter.value === "*" ? "Nothing has been labelled yet." : "No sample has this label.";
    more.hidden = list.childElementCount >= found.total;
    const doubts = order.value === "doubtful" ? "Each label is judged by a model that was trained without it, again after every training." : "";
    note.hidden = !doubts && cell === null;
    note.textContent = `${doubts} ${BIAS}`.trim();
  }

  function card(item) {
    const label = item.words ?? (item.unreadable ? "cannot be read" : "cannot say");
    const doubt = item.doubt && item.doubt.predicted !== item.label ? `a model without it: ${item.doubt.predicted} (${item.label}: ${percent(item.doubt.probability)})` : "";
    const several = item.answers?.length > 1 ? item.answers.map(([who, what]) => `${who}: ${what ?? "cannot say"}`).join(", ") : "";
    const said = [several, doubt].filter(Boolean).join(" · ");
    const button = h("button",
      { type: "button", class: "card", "data-id": item.id, onclick: () => correct(item) },
      item.kind === "image" && !item.unreadable ? pictureOf(app.pictures, item, 160, "") : h("span", { class: "snippet" }, item.text ?? item.id),
      h("span", { class: "card-label" }, label), said ? h("span", { class: "disagrees" }, said) : null,
      h("span", { class: "hidden" }, `${item.id}. Correct it.`));
    return h("li", {}, button);
  }

  function correct(item) {
    const dialog = h("dialog", { class: "correct", "aria-label": `Correct ${item.id}`, onclose: () => dialog.remove() });
    const choose = (answer) => change({ label: answer });
    let busy = false;
    async function change(answer) {
      if (busy) return;
      busy = true;
      try {
        if (order.value === "disputed") {
          await app.call("decide", { id: item.id, label: null, ...answer });
          app.refresh();
        } else {
          await app.answer({ ids: [item.id], label: null, ...answer });
        }
        dialog.close();
        show(0);
      } finally {
        busy = false;
      }
    }
    const panel = answerPanel(app.form, app.classes(), choose, async (name) => { await app.addClass(name); await choose(name); });
    dialog.append(
      h("header", {}, h("strong", {}, item.id), h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, "✕")),
      bodyOf(app.pictures, item, 640, item.id),
      h("p", {}, "Label: ", h("strong", {}, item.words ?? "none")),
      ...(item.answers?.length > 1 ? [h("p", { class: "quiet" }, item.answers.map(([who, what]) => `${who}: ${what ?? "cannot say"}`).join(", "))] : []),
      panel.element,
      h("div", { class: "actions" },
        h("button", { type: "button", class: "plain", onclick: () => change({ declined: true }) }, "Cannot say"),
        h("button", { type: "button", class: "plain", onclick: () => change({}) }, "Take the label back")),
    );
    dialog.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.target.closest("input:not(.number, .slider)")) return;
      if (event.key === "Enter" && event.target.closest("button")) return; // its own
      if (panel.key(event) === true) event.preventDefault();
    });
    panel.set(item.label);
    app.root.append(dialog);
    dialog.showModal();
    panel.start();
  }

  const element = h("section", { class: "view", "aria-label": "Gallery" }, h("div", { class: "bar" }, order, filter, behind, count), note, empty, list, more);
  return {
    element,
    // Show the samples behind a cell of the confusions, or those on which people differ.
    choose(which, what) {
      order.value = which;
      cell = what;
      filter.value = "*";
    },
    offerDisputes(offered) {
      if (offered && !disputes.parentElement) order.append(disputes);
    },
    open() {
      filter.hidden = app.form.task === "regression";
      const before = filter.value || "*";
      filter.replaceChildren(h("option", { value: "*" }, "All classes"), ...app.classes().map((name) => h("option", { value: name }, name)),
        h("option", { value: "" }, "No label"));
      filter.value = before;
      show(0);
    },
  };
}
