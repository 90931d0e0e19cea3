// Performs ../cases.json with npm's `taskcluster-client`: `node driver.mjs FOLDER`, where FOLDER
// has node_modules.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

import { Case, Mismatch } from "./table.mjs";

const packages = path.resolve(process.argv[2] ?? ".");
const requireFrom = createRequire(path.join(packages, "package.json"));
const library = async (name) => (await import(pathToFileURL(requireFrom.resolve(name)))).default;
const taskcluster = await library("taskcluster-client");

const CLASSES = { queue: taskcluster.Queue, auth: taskcluster.Auth, object: taskcluster.Object };
const TEMPORARY_FOR_MS = 3600_000;

const client = {
  name: "node",
  rootUrl: process.env.TASKCLUSTER_ROOT_URL,

  slugid: () => taskcluster.slugid(),

  // Without credentials the library would use its defaults.
  service: (name, credentials, more) => new CLASSES[name]({ rootUrl: client.rootUrl, credentials: credentials ?? {}, ...more }),

  call: (service, method, { args = [], payload, query }) =>
    service[method](...args, ...(payload === undefined ? [] : [payload]), ...(query ? [query] : [])),

  async pages(service, method, step) {
    const pages = [];
    let continuationToken;
    do {
      const query = continuationToken ? { ...step.query, continuationToken } : step.query;
      pages.push(await client.call(service, method, { ...step, query }));
      continuationToken = pages.at(-1).continuationToken;
    } while (continuationToken);
    return pages;
  },

  // The options follow the query, which methods with a possible query require.
  signedUrl(service, method, { args = [], query }, expiration) {
    const may = service[method].entryReference.query?.length > 0;
    return service.buildSignedUrl(service[method], ...args, ...(may ? [query ?? {}] : []), { expiration });
  },

  temporaryCredentials(credentials, { scopes, clientId }) {
    const start = new Date();
    const expiry = new Date(start.getTime() + TEMPORARY_FOR_MS);
    return taskcluster.createTemporaryCredentials({ start, expiry, scopes, credentials, ...(clientId && { clientId }) });
  },

  async downloadArtifact(queue, what) {
    let chunks;
    const streamFactory = async () => {
      chunks = [];
      return new Writable({
        write(chunk, _encoding, done) {
          chunks.push(chunk);
          done();
        },
      });
    };
    const contentType = await taskcluster.downloadArtifact({ ...what, queue, streamFactory });
    const content = Buffer.concat(chunks);
    return { text: content.toString(), contentType, size: content.length };
  },

  // In one piece: a stream of bytes, not of single numbers.
  uploadObject: (object, content, what) =>
    taskcluster.upload({ ...what, contentLength: content.length, object, streamFactory: async () => Readable.from([content]) }),

  /** The status and code of an error of the library; undefined for any other. */
  described: (error) => (typeof error.statusCode === "number" ? { status: error.statusCode, ...coded(error) } : undefined),
};

/** The library makes up a code where the server gave none. */
const coded = (error) => (error.code === "UnknownError" ? {} : { code: error.code });

const table = JSON.parse(readFileSync(process.env.TENURE_INTEROP_CASES, "utf8"));
const without = (process.env.TENURE_INTEROP_WITHOUT ?? "").split(",").filter(Boolean);
const root = { clientId: process.env.TASKCLUSTER_CLIENT_ID, accessToken: process.env.TASKCLUSTER_ACCESS_TOKEN };

let passed = 0;
let failed = 0;
let skipped = 0;
for (const description of table.cases) {
  let reason;
  if (without.includes(description.needs)) reason = `the server has no ${description.needs}`;
  else if (description.lacking?.includes(client.name)) reason = "this client lacks it";
  if (reason) {
    skipped += 1;
    console.log(`skipped ${description.name}: ${reason}`);
    continue;
  }
  try {
    await new Case(description, table.templates, client, client.rootUrl, root).run();
    passed += 1;
    console.log(`ok ${description.name}`);
  } catch (error) {
    if (!(error instanceof Mismatch)) throw error;
    failed += 1;
    console.log(`FAILED ${description.name}: ${error.message}`);
  }
}
console.log(`${client.name}: ${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exit(failed === 0 && passed > 0 ? 0 : 1);
