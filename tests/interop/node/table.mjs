// The table of cases, as ../README.md describes it: placeholders, expectations, steps. Independent
// of any client library.

import { isDeepStrictEqual } from "node:util";
import { randomBytes } from "node:crypto";
import http from "node:http";
import https from "node:https";
import { setTimeout as pause } from "node:timers/promises";

const DATE = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
const EVENTUALLY_MS = 20_000;
const PAUSE_MS = 100;
const SIGNED_URL_SECONDS = 3600;
const HTTP_TIMEOUT_MS = 60_000;

/** An answer, or an error, is not what the table expects. */
export class Mismatch extends Error {}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const show = (value) => JSON.stringify(value);

/** What is found in a value under a path like `tasks.0.credentials`. */
const inside = (value, path) => path.split(".").filter(Boolean).reduce((outer, key) => outer?.[key], value);

export function checkFits(wanted, got, where = "the answer") {
  const fail = (what) => {
    throw new Mismatch(`${where} ${what}: ${show(got)}`);
  };
  if (wanted === "$any") {
    if (got === undefined || got === null) fail("is missing");
  } else if (wanted === "$date") {
    if (typeof got !== "string" || !DATE.test(got)) fail("is no date");
  } else if (isObject(wanted) && "$length" in wanted) {
    if (!Array.isArray(got) || got.length !== wanted.$length) fail(`has not ${wanted.$length} elements`);
  } else if (isObject(wanted) && "$contains" in wanted) {
    for (const element of wanted.$contains) {
      if (!Array.isArray(got) || !got.some((candidate) => fits(element, candidate))) fail(`has nothing like ${show(element)}`);
    }
  } else if (isObject(wanted)) {
    if (!isObject(got)) fail("is no object");
    for (const [key, value] of Object.entries(wanted)) {
      if (value !== "$absent") checkFits(value, got[key], `${where}.${key}`);
      else if (key in got) fail(`has ${key}`);
    }
  } else if (Array.isArray(wanted)) {
    if (!Array.isArray(got) || got.length !== wanted.length) fail(`has not ${wanted.length} elements`);
    wanted.forEach((value, index) => checkFits(value, got[index], `${where}.${index}`));
  } else if (!isDeepStrictEqual(wanted, got)) {
    fail(`is not ${show(wanted)}`);
  }
}

function fits(wanted, got) {
  try {
    checkFits(wanted, got);
    return true;
  } catch (error) {
    if (error instanceof Mismatch) return false;
    throw error;
  }
}

/** One case with its values. `client` is what a driver knows about its library; see driver.mjs. */
export class Case {
  constructor(description, templates, client, rootUrl, root) {
    this.description = description;
    this.templates = templates;
    this.client = client;
    this.began = Date.now();
    const unique = randomBytes(6).toString("hex");
    this.values = {
      ...description.values,
      root,
      rootUrl,
      unique,
      provisionerId: "interop",
      workerType: `q${unique}`,
      queueId: `interop/q${unique}`,
    };
    for (const name of description.slugids ?? []) this.values[name] = client.slugid();
  }

  async run() {
    for (const [index, step] of this.description.steps.entries()) {
      if (step.lacking?.includes(this.client.name)) continue;
      for (let time = 0; time < (step.times ?? 1); time++) {
        try {
          await this.#perform(step);
        } catch (error) {
          const kind = kindOf(step);
          const what = typeof step[kind] === "string" ? step[kind] : kind;
          throw new Mismatch(`step ${index + 1} (${what}): ${error.message}`, { cause: error });
        }
      }
    }
  }

  async #perform(step) {
    const deadline = Date.now() + EVENTUALLY_MS;
    let answer;
    for (;;) {
      this.values.fresh = this.client.slugid();
      try {
        answer = await this.#answer(this.#fill(step));
        break;
      } catch (error) {
        if (!(error instanceof Mismatch) || !step.eventually || Date.now() > deadline) throw error;
      }
      await pause(PAUSE_MS);
    }
    for (const [name, path] of Object.entries(step.save ?? {})) this.values[name] = inside(answer, path);
  }

  /** Does what the step says, and checks what comes of it. */
  async #answer(step) {
    let answer;
    try {
      answer = await KINDS[kindOf(step)](this.client, step, this.#credentials(step));
    } catch (error) {
      const described = this.client.described(error);
      if (!described || !step.error) throw described ? new Mismatch(`an error: ${show(described)} ${error.message}`) : error;
      const { message = "", ...rest } = step.error;
      checkFits(rest, described, "the error");
      if (!error.message.includes(message)) throw new Mismatch(`the error does not say ${message}: ${error.message}`);
      return undefined;
    }
    if (step.error) throw new Mismatch(`no error, but ${show(answer)}`);
    if ("expect" in step) checkFits(step.expect, answer);
    return answer;
  }

  #credentials(step) {
    if ((step.as ?? "anonymous") === "anonymous") return undefined;
    const { clientId, accessToken, certificate } = this.#fill(this.values[step.as]);
    return certificate === undefined ? { clientId, accessToken } : { clientId, accessToken, certificate };
  }

  #fill(value) {
    if (typeof value === "string") {
      const whole = /^\$\{([^}]*)\}$/.exec(value);
      return whole ? this.#value(whole[1]) : value.replace(/\$\{([^}]*)\}/g, (_, name) => this.#value(name));
    }
    if (Array.isArray(value)) return value.map((element) => this.#fill(element));
    if (!isObject(value)) return value;
    if ("$template" in value) {
      const { $template, ...changes } = value;
      return this.#fill({ ...this.templates[$template], ...changes });
    }
    if ("$times" in value) {
      return Array.from({ length: value.$times }, (_, index) => value.each.replaceAll("${number}", index + 1));
    }
    return Object.fromEntries(Object.entries(value).map(([key, element]) => [this.#fill(key), this.#fill(element)]));
  }

  #value(name) {
    const fromNow = /^now([+-]\d+)$/.exec(name);
    if (fromNow) return new Date(this.began + Number(fromNow[1]) * 1000).toJSON();
    const [first, ...rest] = name.split(".");
    if (!(first in this.values)) throw new Error(`there is no value ${first}`);
    return inside(this.values[first], rest.join("."));
  }
}

const kindOf = (step) => Object.keys(KINDS).find((kind) => kind in step);

const KINDS = {
  call(client, step, credentials) {
    const options = step.authorizedScopes ? { authorizedScopes: step.authorizedScopes } : {};
    return client.call(client.service(step.service ?? "queue", credentials, options), step.call, step);
  },
  async paginate(client, step, credentials) {
    const pages = await client.pages(client.service(step.service ?? "queue", credentials, {}), step.paginate, step);
    const found = pages.flatMap((page) => page[step.items].map((element) => inside(element, step.unique)));
    return { pages: pages.length, count: found.length, distinct: new Set(found).size };
  },
  signedUrl(client, step, credentials) {
    const service = client.service(step.service ?? "queue", credentials, {});
    return client.signedUrl(service, step.signedUrl, step, step.seconds ?? SIGNED_URL_SECONDS);
  },
  temporaryCredentials: (client, step, credentials) => client.temporaryCredentials(credentials, step.temporaryCredentials),
  uploadObject(client, step, credentials) {
    const { text, times = 1, ...what } = step.uploadObject;
    return client.uploadObject(client.service("object", credentials, {}), Buffer.from(text.repeat(times)), what);
  },
  downloadArtifact: (client, step, credentials) =>
    client.downloadArtifact(client.service("queue", credentials, {}), step.downloadArtifact),
  http: (_client, { http: wanted }) => request(wanted),
};

/** A request as it is given: Node's own client sends the target unchanged. */
function request({ method, url, headers = {}, body = "" }) {
  const [, scheme, host, target] = /^(https?):\/\/([^/]+)(.*)$/.exec(url);
  const { hostname, port } = new URL(`${scheme}://${host}`);
  return new Promise((resolve, reject) => {
    const options = { method, hostname, port, path: target, headers, timeout: HTTP_TIMEOUT_MS };
    const sent = (scheme === "https" ? https : http).request(options, (response) => {
      const chunks = [];
      response.on("data", (chunk) => chunks.push(chunk));
      response.on("error", reject);
      response.on("end", () => {
        const text = Buffer.concat(chunks).toString();
        const answer = { status: response.statusCode, headers: response.headers, text };
        if (response.headers["content-type"]?.startsWith("application/json")) answer.json = JSON.parse(text);
        resolve(answer);
      });
    });
    sent.on("timeout", () => sent.destroy(new Error("no answer in time")));
    sent.on("error", reject);
    sent.end(body);
  });
}
