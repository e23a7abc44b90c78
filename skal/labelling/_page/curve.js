// The learning curve: accuracy on held-out random labels, its interval, and the forecast.
import { h, percent, svg } from "./dom.js";

const WIDTH = 320, HEIGHT = 150, LEFT = 42, BOTTOM = 20, TOP = 8, RIGHT = 8;

export function curve(status) {
  const points = status.curve;
  const last = points[points.length - 1];
  if (!last) return h("p"); // the sentence below says what is missing
  const all = status.later ? [...points, status.later] : points;
  const highest = Math.max(...all.map((point) => point.n));
  const x = (n) => LEFT + (n / highest) * (WIDTH - LEFT - RIGHT);
  const y = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const line = (list) => list.map((point) => `${x(point.n).toFixed(1)},${y(point.score).toFixed(1)}`).join(" ");
  const band = [...points.map((p) => `${x(p.n)},${y(p.high)}`), ...points.map((p) => `${x(p.n)},${y(p.low)}`).reverse()];
  const words = `Accuracy ${percent(last.score)} with ${last.n} labels, between ${percent(last.low)} and ${percent(last.high)}. ${status.guessing.words}`;
  const guess = y(status.guessing.level);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", role: "img", "aria-label": words });
  for (const share of [0, 0.5, 1]) {
    picture.append(
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share), class: "rule" }),
      svg("text", { x: LEFT - 5, y: y(share) + 4, "text-anchor": "end" }, percent(share)),
    );
  }
  picture.append(
    svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: guess, y2: guess, class: "guess" }),
    svg("text", { x: WIDTH - RIGHT, y: guess - 3, "text-anchor": "end", class: "guessed" }, "guessing"),
    svg("text", { x: LEFT, y: HEIGHT - 4 }, "0"),
    svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 4, "text-anchor": "end" }, `${highest} labels`),
    svg("polygon", { points: band.join(" "), class: "band" }),
    svg("polyline", { points: line(points), class: "line" }),
    ...points.map((p) => svg("circle", { cx: x(p.n), cy: y(p.score), r: 2.2, class: "dot" })),
  );
  if (status.later) {
    const to = status.later;
    picture.append(
      svg("polyline", { points: line([last, to]), class: "line later" }),
      svg("line", { x1: x(to.n) - 1, x2: x(to.n) - 1, y1: y(to.low), y2: y(to.high), class: "line" }),
    );
  }
  return picture;
}
