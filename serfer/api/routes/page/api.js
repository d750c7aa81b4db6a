// The service as the page asks it: keys, problems (RFC 9457), queries that are followed until they end.

/** What went wrong; `status` is 0 where the server could not be reached. `retryAfter` is in seconds, or null. */
export class Problem extends Error {
  constructor(told, retryAfter = null) {
    super(told.detail || told.title || "no reason was given");
    this.status = told.status ?? 0;
    this.title = told.title || "Something went wrong";
    this.requestId = told.request_id || "";
    this.retryAfter = retryAfter;
  }
}

const UNREACHABLE = {
  title: "The server cannot be reached",
  detail: "Nothing answers at this page's address. Look whether the service still runs, then try again.",
};
const PACES = [[20, 100], [40, 250], [Infinity, 1000]]; // until so many polls: ms between two of them
const MOST_MISSES = 5;

async function problemOf(response) {
  const seconds = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  let told = {};
  try {
    told = await response.json();
  } catch {
    told.detail = `The server answered ${response.status} and gave no reason.`;
  }
  const requestId = told.request_id || response.headers.get("X-Request-Id") || "";
  const title = told.title || response.statusText;
  return new Problem({ ...told, title, request_id: requestId, status: response.status }, Number.isNaN(seconds) ? null : seconds);
}

/** Wait for `ms`; ends with an AbortError as soon as `signal` says so. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

export class Service {
  key = "";

  /** Send a request with the key, and return its response, whatever its status. */
  async send(path, options = {}) {
    const headers = { ...options.headers, ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    try {
      return await fetch(path, { cache: "no-store", ...options, headers });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new Problem(UNREACHABLE);
    }
  }

  async #fetch(path, options) {
    const response = await this.send(path, options);
    if (!response.ok) throw await problemOf(response);
    return response;
  }

  async #json(path, options) {
    const response = await this.#fetch(path, options);
    try {
      return await response.json();
    } catch (error) {
      if (options?.signal?.aborted) throw error;
      throw new Problem(UNREACHABLE);
    }
  }

  models = async () => (await this.#json("v1/models")).models;

  /** A model's plan, or that of APPLICATION:VARIANT. */
  model(name, signal) {
    return this.#json(`v1/models/${encodeURIComponent(name)}`, { signal });
  }

  applications = async () => (await this.#json("v1/applications")).applications;

  application(name, signal) {
    return this.#json(`v1/applications/${encodeURIComponent(name)}`, { signal });
  }

  /** Send a query with its `parameters` to `route`, classify or predict; returns its state, which `follow` takes on, or at once {"status": "done", "result": ...}. */
  async ask(file, { route, ...parameters }, signal) {
    const form = new FormData();
    form.append("image", file, file.name || "picture");
    const query = new URLSearchParams({ ...parameters, explain: "true" });
    const options = { method: "POST", body: form, signal, headers: { Prefer: "respond-async" } };
    const found = await this.#json(`v1/${route}?${query}`, options);
    return found.status ? found : { status: "done", result: found, stages: [] };
  }

  /** Yield a query's states until it has ended; a poll that fails is asked again. */
  async *follow(state, signal) {
    let misses = 0;
    for (let polls = 1; ; polls += 1) {
      yield state;
      if (state.status === "done" || state.status === "failed") return;
      await pause(PACES.find(([most]) => polls <= most)[1], signal);
      try {
        state = await this.#json(`v1/results/${encodeURIComponent(state.id)}`, { signal });
        misses = 0;
      } catch (problem) {
        misses += 1;
        const passing = problem instanceof Problem && [0, 429, 502, 503, 504].includes(problem.status);
        if (!passing || misses > MOST_MISSES) throw problem;
        await pause((problem.retryAfter ?? 1) * 1000, signal);
      }
    }
  }

  /** Stop a query and forget its result. */
  async forget(id) {
    try {
      await this.#fetch(`v1/results/${encodeURIComponent(id)}`, { method: "DELETE" });
    } catch (problem) {
      if (problem.status !== 404) throw problem; // it had ended and expired
    }
  }
}
