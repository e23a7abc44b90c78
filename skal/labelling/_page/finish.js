// How good the model is, and the way to a finished data set: a last check, then what the certificate leaves to people.
import { h } from "./dom.js";

const unbroken = (text) => text.replaceAll(" %", "\u00a0%");

export function finishing(app) {
  const accuracy = h("p", { class: "accuracy" });
  const guess = h("p", { class: "guessing forecast" });
  const later = h("p", { class: "forecast later-words" });
  const words = h("p", { class: "finish-words", role: "status" });
  const bar = h("progress", { class: "check", max: 1, value: 0, hidden: true, "aria-label": "Share of the last check that is answered" });
  const begin = h("button", { type: "button", class: "plain certify", onclick: () => ask("certify") }, "Finish with this promise");
  const cancel = h("button", { type: "button", class: "plain resume", onclick: () => ask("resume") }, "Let the model learn on");
  const file = h("a", { class: "plain final-file", href: app.finalFile ?? "#", download: "final.json" }, "Download the data set");
  const heading = h("h2", {}, "Finish");
  const element = h("section", { class: "finishing", "aria-label": "Finish" }, heading, words, bar, h("div", { class: "actions" }, begin, file, cancel));

  async function ask(method) {
    begin.disabled = cancel.disabled = true;
    try {
      await app.call(method);
      app.refresh();
    } catch { /* the banner says why */ } finally {
      begin.disabled = cancel.disabled = false;
    }
  }

  // What people are asked for: samples to learn from, the last check, or what the certificate leaves.
  function mode(status) {
    if (status.check) return "check";
    return status.finishing && status.final ? "left" : "learn";
  }

  function say(status) {
    if (status.check) return `Last check: ${status.check.done} of ${status.check.total} samples, drawn by chance. The model waits for their labels.`;
    if (status.drawing) return "The last check is drawn after the training.";
    if (status.final) return status.final.words;
    const { n_model: model, n_check: check, n_people: people } = status.audit;
    const first = check === people ? "These are a last check, drawn by chance." : `${check} of yours come first: a last check, drawn by chance.`;
    return [status.refused, status.audit.finish, model ? first : ""].filter(Boolean).join(" ");
  }

  return {
    element,
    measures: [accuracy, guess, later],
    mode,
    show(status) {
      const now = mode(status);
      accuracy.textContent = unbroken(status.measured ? status.audit.words : status.form.task === "classification" ? "Accuracy is not measured, because no labels are held out." : "Accuracy is measured for single classes alone.");
      guess.textContent = status.measured && status.audit.enough ? unbroken(status.guessing.words) : "";
      later.textContent = unbroken(status.forecast ?? "");
      words.textContent = unbroken(say(status));
      element.hidden = !words.textContent;
      bar.hidden = now !== "check";
      if (status.check) [bar.max, bar.value] = [status.check.total, status.check.done];
      accuracy.classList.toggle("quiet", !status.audit.enough);
      const decides = !status.team || status.team.decides;
      begin.hidden = !decides || now !== "learn" || !status.audit.n_model || status.drawing;
      cancel.hidden = !decides || now === "learn";
      file.hidden = !status.final || !app.finalFile;
    },
  };
}
