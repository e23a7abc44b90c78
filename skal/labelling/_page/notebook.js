// The page as a cell: calls go to the kernel as messages of a widget, pictures come back as bytes.
import { mount } from "./app.js";

function kernelTransport(model) {
  const waiting = new Map();
  let last = 0;
  model.on("msg:custom", (message, buffers) => {
    const { resolve, reject } = waiting.get(message.number) ?? {};
    waiting.delete(message.number);
    if (!resolve) return; // of another view of the same widget
    if (message.error !== undefined) reject(new Error(message.error));
    else if (message.kind !== undefined) resolve(URL.createObjectURL(new Blob([buffers[0]], { type: message.kind })));
    else resolve(message.answer);
  });
  const send = (content) => new Promise((resolve, reject) => {
    const number = `${Math.random()} ${++last}`;
    waiting.set(number, { resolve, reject });
    model.send({ number, ...content });
  });
  return {
    call: (method, given) => send({ method, given }),
    picture: (id, size) => send({ picture: id, size: size ?? null }),
  };
}

function render({ model, el }) {
  el.classList.add("in-notebook");
  el.tabIndex = 0;
  el.dataset.lpSuppressShortcuts = "true"; // JupyterLab then leaves the keys to us
  mount(el, kernelTransport(model), el);
}

export default { render };
