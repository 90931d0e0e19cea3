// The operator's page in a browser: empty, full, hostile; on a desktop and on a phone. Starts with
// a fresh server and then fills it.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";

const QUEUE = "proj-browser/linux-large";
const ASSIGNED = "proj-browser/assigned";
const SIZES = {
  desktop: { viewport: { width: 1360, height: 900 }, colorScheme: "light" },
  phone: { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, colorScheme: "dark" },
};
// The main pages are looked at in the other colours of each device, too.
const CROSSED = {
  "desktop-dark": { ...SIZES.desktop, colorScheme: "dark" },
  "phone-light": { ...SIZES.phone, colorScheme: "light" },
};
// Would open a dialog, or run as soon as it is part of a page.
const HOSTILE = `"'><script>alert(1)</script><img src=x onerror=alert(2)><svg/onload=alert(3)>`;

function slug() {
  const bytes = randomBytes(16);
  bytes[0] &= 0x7f;
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString("base64url");
}

// Waits up to ten seconds for a condition.
async function until(what, isSo) {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await isSo()) return;
    await new Promise((done) => setTimeout(done, 100));
  }
  assert.fail(`waited in vain: ${what}`);
}

// Tasks in all states; one has hostile text in all texts of its submitter.
async function fill(api) {
  const call = (method, path, body) => api(method, `/api/queue/v1${path}`, body);
  const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
  const create = async (name, more = {}) => {
    const id = slug();
    await call("PUT", `/task/${id}`, {
      taskQueueId: QUEUE,
      created: at(0),
      deadline: at(3600),
      payload: { command: [["make", name]], maxRunTime: 600 },
      metadata: { name, description: `Builds ${name} and runs its tests.`, owner: "ci@example.com", source: "https://example.com/repo" },
      ...more,
    });
    return id;
  };
  const group = slug();
  const ids = {};
  for (const name of ["build-linux", "test-unit", "test-integration", "lint", "docs", "package-debian"]) {
    ids[name] = await create(name, { taskGroupId: group });
  }
  ids.hostile = await create(HOSTILE, {
    taskGroupId: group,
    metadata: { name: HOSTILE, description: HOSTILE, owner: HOSTILE, source: `https://example.com/${HOSTILE}` },
    payload: { [HOSTILE]: HOSTILE, close: "</pre></script>" },
    tags: { [HOSTILE]: HOSTILE },
    extra: { [HOSTILE]: [HOSTILE] },
    priority: "highest",
  });
  const claim = async (tasks, workerId, more = {}) =>
    (await call("POST", `/claim-work/${encodeURIComponent(QUEUE)}`, { workerGroup: "frankfurt", workerId, tasks, ...more })).tasks;
  const begin = (workerId, more) =>
    api("POST", "/api/tenure/v1/sessions", { taskQueueId: QUEUE, workerGroup: "frankfurt", workerId, ttl: 3600, ...more });
  const end = (claimed, how, body) => call("POST", `/task/${claimed.status.taskId}/runs/${claimed.runId}/${how}`, body);
  const [hostile, completed, failed, broken, shut] = await claim(5, "worker-01");
  assert.equal(hostile.status.taskId, ids.hostile);
  // Another task depends on it, and it has all texts of a worker.
  ids.report = await create("report", { taskGroupId: group, dependencies: [ids.hostile] });
  await call("POST", `/task/${ids.hostile}/runs/${hostile.runId}/artifacts/${encodeURIComponent("public/sums/of-everything-that-was-built.txt")}`, {
    storageType: "reference",
    url: "https://example.com/sums.txt",
    contentType: "text/plain",
    expires: at(3600),
  });
  await end(hostile, "failed", { failure: { message: HOSTILE, exitCode: 3 } });
  await end(completed, "completed");
  await end(failed, "failed");
  await end(broken, "exception", { reason: "malformed-payload" });
  await end(shut, "exception", { reason: "worker-shutdown" });
  const { sessionId } = await begin("worker-02", { capacity: 4 });
  const [running] = await claim(1, "worker-02", { sessionId });
  const log = `/api/tenure/v1/tasks/${running.status.taskId}/runs/0/live-log`;
  const compiled = Array.from({ length: 35 }, (_, n) => `cc -c part-${n}.c\n`).join("");
  const long = "a line that is longer than any phone is wide ".repeat(8);
  await api("PUT", `${log}?offset=0`, `cc -c main.c\n${HOSTILE}\n${long}\n\u001b[31mred\u001b[0m\n${compiled}`);
  await api("PUT", `${log}?offset=5000`, "cc -o main main.o\n");
  const idle = await begin("worker-03", { weight: 65535, capacity: 1000 });
  await api("POST", `/api/tenure/v1/sessions/${idle.sessionId}/renew`, { frozen: true });
  for (let i = 1; i <= 6; i += 1) await create(`nightly-${i}`, { taskQueueId: i % 2 ? QUEUE : "proj-browser/windows", priority: i % 3 ? "low" : "medium" });
  const queue = `/api/tenure/v1/queues/${encodeURIComponent(QUEUE)}`;
  await api("PUT", `${queue}/policy`, { fair: true, concurrency: { total: 20, perKey: 3 }, rate: { perKey: { count: 100, seconds: 3600, burst: 5 } } });
  await api("PUT", `${queue}/keys/${encodeURIComponent(HOSTILE)}`, { concurrency: 5, weight: 2 });
  await api("PUT", `${queue}/keys/${"a-customer-with-a-long-name-".repeat(4)}`, { rate: { count: 10, seconds: 60 } });
  const assigned = `/api/tenure/v1/queues/${encodeURIComponent(ASSIGNED)}`;
  await api("PUT", `${assigned}/policy`, { dispatch: "assign" });
  await create("given-by-the-scheduler", { taskQueueId: ASSIGNED });
  await until("a server is the scheduler", async () =>
    (await api("GET", "/api/tenure/v1/servers")).servers.some((server) => server.queues.some((queue) => queue.taskQueueId === ASSIGNED)));
  return { group, hostile: ids.hostile, running: running.status.taskId, retried: shut.status.taskId };
}

const isOverview = (url) => url.pathname === "/";

/** A page of this size, and how to look at it. */
async function open({ newPage, screenshot, axe }, size) {
  const page = await newPage(SIZES[size] ?? CROSSED[size]);
  const look = async (name) => {
    await screenshot(`${name}-${size}`, page, { fullPage: true });
    // Tables scroll in their own boxes; the page itself never scrolls sideways.
    const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(wide <= room, `${name} on ${size} is ${wide} wide in ${room}`);
    assert.equal(await page.locator('script:not([src*="/page/refresh.js"])').count(), 0, `${name} has a foreign script`);
    assert.deepEqual(await axe(page), [], `${name} on ${size}`);
  };
  const visit = async (path, name, status = 200) => {
    const response = await page.goto(path);
    assert.equal(response.status(), status, path);
    await look(name);
  };
  const text = () => page.locator("main").innerText();
  return { page, visit, look, text };
}

async function logIn({ page }, { clientId, accessToken }) {
  await page.getByRole("link", { name: "Log in" }).first().click();
  await page.getByLabel("Client id").fill(clientId);
  await page.getByLabel("Access token").fill(accessToken);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.waitForURL((url) => !url.pathname.endsWith("/login"));
}

async function showEmpty(tools, size) {
  const { page, visit, look, text } = await open(tools, size);
  await visit("/", "empty-anonymous");
  assert.match(await text(), /There is no queue yet[^]*tenure-worker run/);
  await visit("/login", "login");
  await page.getByLabel("Client id").fill(tools.root.clientId);
  await page.getByLabel("Access token").fill("wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  assert.match(await page.getByRole("alert").innerText(), /no such client, or the access token is wrong/);
  await look("login-wrong");
  await visit("/", "empty-anonymous");
  await logIn({ page }, tools.root);
  assert.match(await text(), /There is no queue yet/);
  await look("empty");
  await visit("/queues", "queues-empty");
}

// Pauses the queue with its button and form, and resumes it.
async function pauseAndResume({ page, look, text, visit }, made) {
  const [provisioner, workerType] = QUEUE.split("/");
  await visit(`/queue/${provisioner}/${workerType}`, "queue");
  await page.getByRole("link", { name: "Pause…" }).click();
  await look("pause");
  await page.getByLabel("Reason").fill(HOSTILE);
  await page.getByLabel("Until").selectOption({ label: "an hour from now" });
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByText("Paused by root").first().waitFor();
  await look("queue-paused");
  assert.ok((await text()).includes(HOSTILE), "the reason is shown as text");
  await visit(`/task/${made.retried}`, "task-paused");
  assert.match(await text(), /Its queue was paused by root/);
  await page.getByRole("link", { name: QUEUE, exact: true }).first().click();
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("link", { name: "Pause…" }).waitFor();
}

async function showFull(tools, size, made) {
  const { page, visit, look, text } = await open(tools, size);
  await visit("/", "overview-anonymous");
  await logIn({ page }, tools.root);
  await page.getByRole("link", { name: "malformed-payload" }).first().waitFor();
  await look("overview");
  for (const words of [QUEUE, "proj-browser/windows", "Oldest runnable", "Failures by reason", "exit code 3"]) {
    assert.ok((await text()).includes(words), `the overview has ${words}`);
  }
  await visit("/queues", "queues");
  assert.ok((await text()).includes("proj-browser/windows"));
  await visit("/queues?order=name", "queues-by-name");
  await page.getByRole("link", { name: QUEUE, exact: true }).first().click();
  await look("queue");
  assert.match(await text(), /Next to be claimed/);
  assert.match(await text(), /Sessions[^]*frankfurt\/worker-03[^]*frozen/i);
  assert.match(await text(), /Failures by worker[^]*frankfurt\/worker-01/);
  assert.match(await text(), /At most 3 runs of each key at a time\.[^]*Keys[^]*a-customer-with-a-long-name/);
  await page.locator(`a[href$="/task/${made.running}"]`).first().click();
  await look("task-running");
  assert.match(await text(), /running/);
  assert.match(await text(), /Log[^]*cc -c main\.c[^]*bytes of the log are missing here[^]*cc -o main/);
  assert.ok((await text()).includes(HOSTILE), "what was printed is shown as text");
  assert.match(await text(), /^red$/m);
  const [height, room, below] = await page.locator(".log").evaluate((log) => {
    const end = log.firstElementChild.getBoundingClientRect().bottom - log.getBoundingClientRect().bottom;
    return [log.scrollHeight, log.clientHeight, end];
  });
  assert.ok(height > room && below < 3, `the end of the log is ${below} below its box`);
  // The page of the log is never complete during the run.
  await page.goto(`/task/${made.running}/log`, { waitUntil: "commit" });
  await page.getByText("cc -o main main.o").waitFor();
  await look("log-running");
  assert.ok((await text()).includes(HOSTILE), "here too");
  await page.goto(`/task/${made.running}`);
  await page.getByRole("link", { name: "frankfurt/worker-02" }).first().click();
  await look("worker");
  assert.match(await text(), /Contact[^]*working[^]*Holds/);
  await visit(`/task/${made.retried}`, "task-retried");
  assert.match(await text(), /made by retry[^]*worker-shutdown/);
  await visit(`/group/${made.group}`, "group");
  assert.match(await text(), /tasks have ended[^]*Graph[^]*Failed[^]*Can never run[^]*report/i);
  assert.ok((await text()).includes(HOSTILE), "names in a group are shown as text");
  assert.equal(await page.locator(".graph a").count(), 8, "each task of the group is a node");
  await page.locator(".graph a", { hasText: "report" }).click();
  await page.waitForURL("**/task/*");
  await visit(`/group/${made.group}?show=failed`, "group-failed");
  assert.match(await text(), /The whole group[^]*malformed-payload/);
  await visit(`/task/${made.retried}/compare`, "compare");
  assert.match(await text(), /Run 0[^]*worker-shutdown[^]*Run 1[^]*pending/);
  await visit(`/queue/${ASSIGNED}`, "queue-assigned");
  assert.match(await text(), /Schedulers[^]*active/i);
  await pauseAndResume({ page, look, text, visit }, made);
  await visit(`/task/${made.hostile}`, "task-hostile");
  assert.ok((await text()).includes(HOSTILE), "what was said is shown as text");
  assert.match(await text(), /Failed on \S+ after [^:]*: /);
  assert.ok((await text()).includes(`: ${HOSTILE}`), "so is what the worker said");
  assert.match(await text(), /of-everything-that-was-built[^]*Needed by[^]*report[^]*unscheduled/);
  assert.equal(await page.locator('a[href^="javascript:" i]').count(), 0);
  assert.equal(await page.locator("main img, main svg:not(.bar), main [onerror], main [onload]").count(), 0);
  await visit("/workers", "workers");
  assert.match(await text(), /frankfurt\/worker-02[^]*Running claims/);
  await visit(`/workers?queue=${encodeURIComponent(QUEUE)}`, "workers-of-queue");
  for (const worker of ["worker-01", "worker-03"]) assert.ok((await text()).includes(`frankfurt/${worker}`), worker);
  await visit("/access", "access");
  await page.getByLabel("Scope").fill("queue:claim-work:acme/linux");
  await page.getByRole("button", { name: "Ask" }).click();
  await page.getByText("1 of 1 clients").waitFor();
  await look("access-who");
  await visit("/client/root", "client");
  await visit("/role/anonymous", "role");
  await visit("/system", "system");
  assert.match(await text(), /Tenure is well|needs? somebody/);
  await page.getByText(/^All \d+ passes$/).click();
  await look("system-passes");
  await visit(`/task/${slug()}`, "not-found", 404);
  await visit("/", "overview");
  await visit(`/tasks?queue=${encodeURIComponent(QUEUE)}&name=${encodeURIComponent("<script>")}`, "tasks");
  await visit("/tasks?since=soon", "tasks-refused");
  const { jobId } = await tools.api("POST", "/api/tenure/v1/jobs", { action: "cancel", taskIds: [slug()] });
  await visit("/jobs", "jobs");
  await visit(`/jobs/${jobId}`, "job");
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByRole("link", { name: "Log in" }).first().waitFor();
  assert.equal((await page.context().cookies()).length, 0, "logging out takes the cookie away");
}

// The pages with the most colours: states, bars, charts and the graph.
async function showMain(tools, size, made) {
  const { page, visit } = await open(tools, size);
  await page.goto("/login");
  await logIn({ page }, tools.root);
  await visit("/", "overview");
  await visit(`/queue/${QUEUE}`, "queue");
  await visit(`/task/${made.running}`, "task-running");
  await visit(`/task/${made.hostile}`, "task-hostile");
  await visit(`/group/${made.group}`, "group");
}

export default {
  "a server without queues shows that, and a login with a wrong token is refused": async (tools) => {
    tools.expectConsole(/status of 401/);
    for (const size of Object.keys(SIZES)) await showEmpty(tools, size);
  },

  "what is going on is shown on a desk and on a phone, and hostile texts are only texts": async (tools) => {
    tools.expectConsole(/status of 404/);
    const made = await fill(tools.api);
    for (const size of Object.keys(SIZES)) await showFull(tools, size, made);
    for (const size of Object.keys(CROSSED)) await showMain(tools, size, made);
  },

  "charts are drawn for minutes that have ended": async (tools) => {
    for (const size of Object.keys(SIZES)) {
      const { page, look, visit } = await open(tools, size);
      await page.goto("/login");
      await logIn({ page }, tools.root);
      await page.goto("/");
      // The page loads itself again. A minute is shown 15 s after its end.
      await page.locator(".chart svg").first().waitFor({ timeout: 100_000 });
      await look("overview-charts");
      assert.equal(await page.locator(".chart svg").count(), 3);
      assert.ok((await page.locator(".hits title").allTextContents()).some((words) => /\d created/.test(words)));
      await page.getByRole("link", { name: "week", exact: true }).click();
      await page.waitForURL("**/?range=7d");
      await visit(`/queue/${QUEUE}`, "queue-charts");
      assert.ok((await page.locator(".spark").count()) + (await page.locator(".chart svg").count()) >= 3);
    }
  },

  "lines of a log are found, linked to and marked, without a script": async (tools) => {
    const [id, queue] = [slug(), "proj-browser/logs"];
    const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
    await tools.api("PUT", `/api/queue/v1/task/${id}`, {
      taskQueueId: queue,
      created: at(0),
      deadline: at(3600),
      metadata: { name: HOSTILE, description: "", owner: "o", source: "https://example.com" },
      payload: {},
    });
    const claim = { workerGroup: "frankfurt", workerId: "worker-09", tasks: 1 };
    assert.equal((await tools.api("POST", `/api/queue/v1/claim-work/${encodeURIComponent(queue)}`, claim)).tasks.length, 1);
    const compiled = Array.from({ length: 199 }, (_, n) => `cc -c part-${n}.c\n`).join("");
    await tools.api("PUT", `/api/tenure/v1/tasks/${id}/runs/0/live-log?offset=0`, `${compiled}${HOSTILE}\n`);
    const page = await tools.newPage({ javaScriptEnabled: false });
    const log = `/task/${id}/log`;
    await page.goto(`${log}?q=CC+-c+part-1`);
    assert.match(await page.locator("main").innerText(), /110 of 200 lines/);
    await page.getByLabel("Lines with").fill(HOSTILE);
    await page.getByRole("button", { name: "Find" }).click();
    await page.getByText(/^1 of 200 lines/).waitFor();
    assert.ok((await page.locator(".log").innerText()).includes(HOSTILE), "what was found is shown as text");
    assert.equal(await page.getByLabel("Lines with").inputValue(), HOSTILE);
    await page.getByLabel("Lines from").fill("12");
    await page.getByLabel("to", { exact: true }).fill("14");
    // Until the run ends, the page is never complete, and browsers do not scroll to a line.
    await tools.api("POST", `/api/queue/v1/task/${id}/runs/0/completed`);
    await page.getByRole("button", { name: "Link to them" }).click();
    await page.waitForURL(/lines=12-14#L12$/);
    await page.locator("#L14.marked").waitFor();
    assert.deepEqual(await page.locator(".marked > a").allInnerTexts(), ["12", "13", "14"]);
    await until("the first of the lines is in sight", async () =>
      page.locator("#L12").evaluate((line) => {
        const [own, box] = [line.getBoundingClientRect(), line.closest(".log").getBoundingClientRect()];
        return own.top >= box.top - 1 && own.bottom <= box.bottom + 1;
      }));
  },

  "at 1400 pixels no table is wider than its box": async (tools) => {
    const page = await tools.newPage({ viewport: { width: 1400, height: 900 } });
    await page.goto("/login");
    await logIn({ page }, tools.root);
    for (const path of ["/", "/queues", `/queue/${QUEUE}`, `/queue/${ASSIGNED}`, "/workers", "/access", "/system"]) {
      await page.goto(path);
      const wide = await page.locator(".scroll").evaluateAll((boxes) =>
        boxes.filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.closest("section").querySelector("h2").innerText));
      assert.deepEqual(wide, [], path);
    }
  },

  "a page is exchanged without losing the place, unless it is in use": async (tools) => {
    tools.expectConsole(/status of 503/);
    const page = await tools.newPage({});
    let loads = 0;
    page.on("request", (request) => (loads += new URL(request.url()).pathname === "/" ? 1 : 0));
    await page.clock.install();
    await page.goto("/");
    await page.evaluate(() => (document.body.dataset.same = "yes"));
    const appears = async () => {
      const name = `proj-browser/appears-${randomBytes(4).toString("hex")}`;
      const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
      await tools.api("PUT", `/api/queue/v1/task/${slug()}`, {
        taskQueueId: name,
        created: at(0),
        deadline: at(60),
        metadata: { name: "late", description: "", owner: "o", source: "https://example.com" },
        payload: {},
      });
      return page.getByRole("link", { name, exact: true });
    };
    const first = await appears();
    await page.evaluate(() => getSelection().selectAllChildren(document.querySelector("main")));
    await page.clock.runFor(11_000);
    assert.equal(loads, 1, "the page is not loaded while text is selected");
    await page.evaluate(() => getSelection().removeAllRanges());
    await page.getByRole("link", { name: QUEUE, exact: true }).first().focus();
    await page.clock.runFor(6_000);
    await first.waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.innerText), QUEUE);
    await page.route(isOverview, (route) => route.fulfill({ status: 503, body: "" }));
    await until("the page says that its server is away", async () => {
      await page.clock.runFor(6_000);
      return /no answer since/.test(await page.locator(".live").innerText());
    });
    await page.unroute(isOverview);
    const second = await appears();
    await until("the page goes on", async () => {
      await page.clock.runFor(6_000);
      return (await second.count()) > 0;
    });
    assert.equal(await page.locator(".live").innerText(), "every 5 s");
    assert.equal(await page.evaluate(() => document.body.dataset.same), "yes", "the page was never loaded as a whole");
  },

  "the page of an error gives way to the page itself": async (tools) => {
    tools.expectConsole(/status of 503/);
    const page = await tools.newPage({});
    const script = '<script src="/page/refresh.js" data-every="5" data-whole="true" defer></script>';
    await page.clock.install();
    await page.route(isOverview, (route) =>
      route.fulfill({ status: 503, contentType: "text/html", body: `${script}<a class="live">every 5 s</a><main>away</main>` }));
    await page.goto("/");
    await page.clock.runFor(6_000);
    assert.equal(await page.locator("main").innerText(), "away");
    await page.unroute(isOverview);
    await until("the page is there", async () => {
      await page.clock.runFor(6_000).catch(() => {});
      return (await page.locator("main h1").count()) > 0;
    });
  },

  "a visitor without scripts can load the page again, or have it loaded": async (tools) => {
    const page = await tools.newPage({ javaScriptEnabled: false });
    await page.goto("/");
    await page.getByRole("link", { name: "load again" }).click();
    assert.equal(await page.locator("meta[http-equiv=refresh]").count(), 0);
    await page.locator("noscript a", { hasText: "every 5 s" }).click();
    await page.waitForURL("**/?refresh=5");
    assert.equal(await page.locator("meta[http-equiv=refresh]").getAttribute("content"), "5");
  },

  "a queue that comes into being appears by itself, until the page is stopped": async (tools) => {
    const { page, visit } = await open(tools, "desktop");
    await visit("/", "overview-anonymous");
    const name = `proj-browser/appears-${slug().slice(0, 6).toLowerCase().replaceAll(/[^a-z0-9]/g, "x")}`;
    const now = Date.now();
    await tools.api("PUT", `/api/queue/v1/task/${slug()}`, {
      taskQueueId: name,
      created: new Date(now).toISOString(),
      deadline: new Date(now + 60_000).toISOString(),
      metadata: { name: "late", description: "", owner: "o", source: "https://example.com" },
      payload: {},
    });
    await page.getByText(name).waitFor({ timeout: 20_000 });
    await page.getByRole("link", { name: "every 5 s" }).click();
    await page.getByRole("link", { name: "stopped" }).waitFor();
    assert.equal(await page.locator("meta[http-equiv=refresh], script").count(), 0);
  },
};
