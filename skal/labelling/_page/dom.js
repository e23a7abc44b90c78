// Elements without a framework. Text is always text: nothing that comes from a file or a person becomes HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") && value !== null && value !== undefined) element.setAttribute(name, String(value));
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function percent(share) {
  return `${Math.round(100 * share)}\u00a0%`;
}

export function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

// Until what was drawn can be seen; a window that is hidden does not paint.
export function painted() {
  return Promise.race([new Promise(requestAnimationFrame), pause(100)]);
}

// Until a picture is here, or is known to be unreadable.
export async function loaded(pictures, item, size) {
  if (item.kind !== "image") return;
  await pictures(item.id, size).then((address) => new Promise((resolve) => {
    const image = new Image();
    image.onload = image.onerror = resolve;
    image.src = address;
  }), () => {});
}

// A sample itself: a picture, the columns of a row, or a text.
export function bodyOf(pictures, item, size, text) {
  if (item.kind === "image") return pictureOf(pictures, item, size, text);
  if (!item.cells) return h("p", { class: "text" }, item.text);
  const rows = item.cells.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name),
    value === "" ? h("td", { class: "quiet" }, "missing") : h("td", {}, value)));
  return h("div", { class: "text cells" }, h("table", { "aria-label": text }, h("tbody", {}, ...rows)));
}

// An <img> that is filled when its picture has come, or a sentence if there is none.
export function pictureOf(pictures, item, size, text) {
  const image = h("img", { alt: text, draggable: "false" });
  const box = h("div", { class: "picture" }, image);
  pictures(item.id, size).then(
    (address) => { image.src = address; },
    (error) => box.replaceChildren(h("p", { class: "unreadable", role: "alert" }, `This image cannot be read. ${error.message}`)),
  );
  return box;
}
