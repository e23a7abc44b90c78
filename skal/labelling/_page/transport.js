// How the page talks to the project: over HTTP here, through the kernel in a notebook.

// Milliseconds between two questions whether the server is there, and for its answer: together less than three seconds.
export const PERIOD = 1400, TIMEOUT = 1400;

export function httpTransport(base) {
  return {
    // Whether the server answers, soon: the page must notice when it is gone.
    async alive() {
      try {
        return (await fetch(new URL("icon.svg", base), { method: "HEAD", cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) })).status < 500;
      } catch {
        return false;
      }
    },
    period: PERIOD,
    finalFile: new URL("final.json", base).href,
    async call(method, given) {
      const response = await fetch(new URL(`api/${method}`, base), {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(given),
      });
      // a proxy whose server is gone answers with a page of its own
      const answer = await response.json().catch(() => { throw new TypeError("no answer of the server"); });
      if (!response.ok) throw new Error(answer.error);
      return answer;
    },
    async picture(id, size) {
      const query = new URLSearchParams(size ? { id, size } : { id });
      const address = new URL(`picture?${query}`, base).href;
      const response = await fetch(address);
      if (!response.ok) throw new Error((await response.json()).error);
      return URL.createObjectURL(await response.blob());
    },
  };
}
