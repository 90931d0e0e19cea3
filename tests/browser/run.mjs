// Runs the suites of this folder in a headless Chromium, each against a fresh server.
//
//   node run.mjs PACKAGES [SUITE...]     PACKAGES is the folder with node_modules
//
// A suite is a file NAME.mjs beside this one. Its default export is an object: a sentence for each
// test, and a function that gets the result of `arrange` below. A test fails if its function
// throws, if a page asks any other server for anything, if a dialog opens, or if the console has an
// error that the test did not announce.
import { spawn } from "node:child_process";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";

const PATIENCE_MS = 30_000;
const SERVER_START_MS = 60_000;
const SERVER_STOP_MS = 20_000;
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

const [packages, ...selected] = process.argv.slice(2);
const require = createRequire(join(packages, "package.json"));
const { chromium } = require("playwright-core");
const here = fileURLToPath(new URL(".", import.meta.url));
const screenshots = join(packages, "screenshots");

async function startServer() {
  const folder = mkdtempSync(join(tmpdir(), "tenure-browser."));
  // As root the server runs PostgreSQL as another user, who needs access.
  chmodSync(folder, 0o755);
  const data = join(folder, "data");
  const child = spawn(process.env.TENURE_BIN, ["serve", "--listen", "127.0.0.1:0", "--data-dir", data], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const ready = new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`the server was not ready in time:\n${said}`)), SERVER_START_MS);
    const listen = (chunk) => {
      said += chunk;
      const found = /^tenure ready: (\S+)\n/m.exec(said);
      if (found) {
        clearTimeout(timer);
        resolve(found[1]);
      }
    };
    child.stdout.on("data", listen);
    child.stderr.on("data", listen);
    ended.then((code) => reject(new Error(`the server ended with ${code}:\n${said}`)));
  });
  const stop = async () => {
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), SERVER_STOP_MS);
    await ended;
    clearTimeout(timer);
    rmSync(folder, { recursive: true, force: true });
  };
  try {
    const origin = await ready;
    return { origin, root: JSON.parse(readFileSync(join(data, "root-credentials.json"), "utf8")), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** A page with cookies of its own, whose faults are written down. */
async function openPage(browser, origin, device, faults, announced) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 1000 }, ...device, baseURL: origin });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (url.origin !== origin && !["data:", "blob:"].includes(url.protocol)) {
      faults.push(`a request to another server: ${request.url()}`);
    }
  });
  page.on("console", (message) => {
    if (message.type() === "error" && !announced.some((pattern) => pattern.test(message.text()))) {
      faults.push(`the console says: ${message.text()} (${message.location().url})`);
    }
  });
  page.on("pageerror", (error) => faults.push(`the page threw: ${error}`));
  page.on("dialog", (dialog) => {
    faults.push(`a dialog opened: ${dialog.message()}`);
    dialog.dismiss().catch(() => {});
  });
  return page;
}

/** What one test gets, and what was wrong with its pages. */
async function arrange(browser, server, suite) {
  const { origin, root } = server;
  const faults = [];
  const announced = [];
  const pages = [];
  const newPage = async (device) => {
    const page = await openPage(browser, origin, device, faults, announced);
    pages.push(page);
    return page;
  };
  const page = await newPage({});
  const authorization = `Basic ${Buffer.from(`${root.clientId}:${root.accessToken}`).toString("base64")}`;
  const tools = {
    page,
    /** Another page, on a device as Playwright describes it, with cookies of its own. */
    newPage,
    origin,
    /** clientId and accessToken of a client who may do everything. */
    root,
    /** The folder's packages. */
    require,
    /** Leaves a picture for people to look at. */
    screenshot: (name, of = page, how = {}) => of.screenshot({ ...how, path: join(screenshots, `${suite}-${name}.png`) }),
    /** The rules of accessibility that a page breaks, each with the impact and some of the elements. */
    async axe(of) {
      await of.evaluate(readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
      const violations = await of.evaluate(async () => (await window.axe.run({ resultTypes: ["violations"] })).violations);
      return violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.slice(0, 3).map((node) => node.html) }));
    },
    /** A call of the API by root, past the browser, with a text or with JSON; gives the JSON of a success. */
    async api(method, path, body) {
      const isText = typeof body === "string";
      const headers = { authorization, ...(body && { "content-type": isText ? "text/plain" : "application/json" }) };
      const answer = await fetch(origin + path, { method, headers, body: body && (isText ? body : JSON.stringify(body)) });
      if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
      return answer.status === 204 ? null : answer.json();
    },
    /** Errors in the console that belong to the test, such as an answer of 403. */
    expectConsole: (pattern) => announced.push(pattern),
  };
  return { tools, faults, close: () => Promise.all(pages.map((one) => one.context().close())) };
}

async function runSuite(browser, suite) {
  const server = await startServer();
  try {
    return await runTests(browser, server, suite);
  } finally {
    await server.stop();
  }
}

async function runTests(browser, server, suite) {
  const tests = (await import(join(here, `${suite}.mjs`))).default;
  let failed = 0;
  for (const [sentence, test] of Object.entries(tests)) {
    const started = Date.now();
    const { tools, faults, close } = await arrange(browser, server, suite);
    try {
      await test(tools);
      if (faults.length > 0) throw new Error(faults.join("\n"));
      console.log(`ok      ${suite}: ${sentence} (${Date.now() - started} ms)`);
    } catch (error) {
      failed += 1;
      await tools.screenshot("failure").catch(() => {});
      console.log(`FAILED  ${suite}: ${sentence}\n${error.stack}\n${faults.join("\n")}`);
    }
    await close();
  }
  return failed;
}

const suites = readdirSync(here).filter((file) => file.endsWith(".mjs") && file !== "run.mjs").map((file) => basename(file, ".mjs"));
const unknown = selected.filter((name) => !suites.includes(name));
if (unknown.length > 0) {
  console.error(`test-browser: no suite ${unknown.join(", ")} in tests/browser; there are: ${suites.join(", ")}`);
  process.exit(2);
}
rmSync(screenshots, { recursive: true, force: true });
mkdirSync(screenshots, { recursive: true });
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, headless: true, args: FLAGS });
let failed = 0;
try {
  for (const suite of suites.filter((name) => selected.length === 0 || selected.includes(name))) {
    failed += await runSuite(browser, suite);
  }
} finally {
  await browser.close();
}
process.exitCode = failed === 0 ? 0 : 1;
