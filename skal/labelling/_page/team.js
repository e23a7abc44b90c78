// Several people: who has answered how much, how far they agree, and what waits for a decision.
import { h } from "./dom.js";

const two = (number) => number.toFixed(2);

export function team(open) {
  const list = h("ul", { class: "people" });
  const words = h("p", { class: "quiet agreement" });
  const decide = h("button", { type: "button", class: "plain disputes", onclick: open });
  const element = h("section", { class: "team", "aria-label": "Team", hidden: true }, h("h2", {}, "Team"), list, words, decide);

  function say({ alpha, common, pairs }) {
    if (alpha === null) return "No sample has two answers yet, so that nobody knows how far people agree.";
    const each = pairs.map((pair) => `${pair.people.join(" and ")} ${two(pair.kappa)} (${pair.common})`).join(", ");
    return `Agreement beyond chance on ${common} samples with several answers: ${two(alpha)} (Krippendorff’s α; 1 is perfect, 0 is chance). `
      + `Two by two (Cohen’s κ, samples): ${each}.`;
  }

  return {
    element,
    show(status) {
      element.hidden = !status.team;
      if (!status.team) return;
      const { answers, disputes, decides, person } = status.team;
      list.replaceChildren(...Object.entries(answers).map(([name, n]) => h("li", {}, h("span", {}, name === person ? `${name} (you)` : name), h("span", { class: "count" }, `${n}`))));
      words.textContent = say(status.team);
      decide.hidden = !decides;
      decide.disabled = disputes === 0;
      decide.textContent = disputes === 1 ? "1 sample to decide" : `${disputes} samples to decide`;
    },
  };
}
