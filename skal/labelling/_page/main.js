// The page as skal label serves it: everything lies beside this file, under the token in the address.
import { mount } from "./app.js";
import { httpTransport } from "./transport.js";

mount(document.getElementById("skal"), httpTransport(new URL(".", location.href)), document);
