// Actions on the operator's page: by keyboard, with and without scripts, with and without scopes.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";

// The check of accessibility for each page that runs scripts, which it needs.
const checks = new WeakMap();
const PHONE = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true };

function slug() {
  const bytes = randomBytes(16);
  bytes[0] &= 0x7f;
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString("base64url");
}

// A group with a task that is claimed by a session, one that waits, and one that needs the second.
async function fill(api) {
  const queue = `proj-actions/q${randomBytes(6).toString("hex")}`;
  const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
  const group = slug();
  const create = async (name, dependencies = []) => {
    const id = slug();
    await api("PUT", `/api/queue/v1/task/${id}`, {
      taskQueueId: queue,
      taskGroupId: group,
      dependencies,
      created: at(0),
      deadline: at(3600),
      payload: { command: ["make", name] },
      metadata: { name, description: "", owner: "ci@example.com", source: "https://example.com" },
    });
    return id;
  };
  const running = await create("running");
  const worker = { workerGroup: "rack", workerId: `worker-${slug()}` };
  const { sessionId } = await api("POST", "/api/tenure/v1/sessions", { taskQueueId: queue, ...worker, ttl: 3600 });
  const claimed = await api("POST", `/api/queue/v1/claim-work/${encodeURIComponent(queue)}`, { ...worker, tasks: 1, sessionId });
  assert.equal(claimed.tasks[0].status.taskId, running);
  const waiting = await create("waiting");
  return { queue, group, running, waiting, unscheduled: await create("unscheduled", [waiting]), sessionId, ...worker };
}

async function logIn(page, { clientId, accessToken }) {
  await page.goto("/login");
  await page.getByLabel("Client id").fill(clientId);
  await page.getByLabel("Access token").fill(accessToken);
  await page.getByLabel("Access token").press("Enter");
  await page.waitForURL((url) => !url.pathname.endsWith("/login"));
}

// Presses Tab until an element with this name has the focus.
async function tabTo(page, name) {
  for (let presses = 0; presses < 80; presses += 1) {
    const focused = await page.evaluate(() => {
      const { textContent, id } = document.activeElement ?? {};
      const label = id && document.querySelector(`label[for="${CSS.escape(id)}"]`);
      return (label?.textContent ?? textContent ?? "").trim();
    });
    if (focused === name || focused.startsWith(`${name} `)) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`the Tab key does not lead to ${name}`);
}

// Presses Enter there, and waits for the page that this leads to: a form if the name ends with dots.
async function press(page, name) {
  await tabTo(page, name);
  const loaded = page.waitForEvent("domcontentloaded");
  await page.keyboard.press("Enter");
  await loaded;
  if (name.endsWith("…")) await fits(page);
}

// One line says what was done, and the next load of the page does not repeat it.
async function says(page, line) {
  await page.getByRole("status").filter({ hasText: line }).waitFor();
  assert.equal(await page.locator("main script").count(), 0);
}

async function fits(page) {
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
  assert.ok(wide <= room, `${page.url()} is ${wide} wide in ${room}`);
  if (checks.has(page)) assert.deepEqual(await checks.get(page)(page), [], page.url());
}

async function actOnTasks(page, made, screenshot, name) {
  // Stopped, so that a reload does not take the focus while keys are pressed.
  await page.goto(`/task/${made.waiting}?refresh=off`);
  await fits(page);
  await screenshot(`task-${name}`, page, { fullPage: true });
  await press(page, "Priority…");
  await page.getByLabel("Priority").selectOption("high");
  await press(page, "Change the priority");
  await says(page, "The priority of the task is high.");
  await page.goto(`/task/${made.waiting}?refresh=off`);
  assert.equal(await page.locator(".done").count(), 0);
  await press(page, "Cancel…");
  await page.getByText("1 task needs it.").waitFor();
  await page.getByText(`tenure task cancel ${made.waiting}`).waitFor();
  await fits(page);
  await screenshot(`cancel-${name}`, page, { fullPage: true });
  await press(page, "Cancel the task");
  await says(page, "The task is cancelled.");
  await press(page, "Rerun");
  await says(page, "The task was rerun and is pending.");
  await page.goto(`/task/${made.unscheduled}?refresh=off`);
  await press(page, "Schedule…");
  await press(page, "Schedule");
  await says(page, "The task was scheduled and is pending.");
  await page.goto(`/task/${made.running}?refresh=off`);
  await press(page, "Command…");
  await page.getByLabel("Command").selectOption("sleep");
  await page.getByLabel("Until").fill("soon");
  await press(page, "Send the command");
  await page.getByRole("alert").filter({ hasText: "until" }).waitFor();
  assert.equal(await page.getByLabel("Until").inputValue(), "soon", "what was typed is kept");
  await page.getByLabel("Command").selectOption("pause");
  await page.getByLabel("Until").fill("");
  await press(page, "Send the command");
  await says(page, "The command pause was sent.");
  await page.goto(`/task/${made.running}?refresh=off`);
  await press(page, "Release…");
  await page.getByLabel("Delay").fill("600");
  await press(page, "Release the run");
  await says(page, "Run 0 was released.");
  await page.goto(`/task/${made.running}?refresh=off`);
  await press(page, "Create again…");
  await page.getByLabel("Payload").fill("{");
  await press(page, "Create the task");
  await page.getByRole("alert").filter({ hasText: "is not JSON" }).waitFor();
  await fits(page);
  await screenshot(`create-again-${name}`, page, { fullPage: true });
  await page.getByLabel("Payload").fill(JSON.stringify({ command: ["make", "again"] }));
  await press(page, "Create the task");
  await says(page, `Created again from task ${made.running}.`);
}

async function actOnGroup(page, made) {
  await page.goto(`/group/${made.group}?refresh=off`);
  await press(page, "Priority…");
  await page.getByLabel("Priority").selectOption("medium");
  await press(page, "Change the priority");
  await says(page, /^The priority of \d tasks? is medium\.$/);
  await page.goto(`/group/${made.group}?refresh=off`);
  await press(page, "Seal…");
  await press(page, "Seal the group");
  await says(page, "The group is sealed.");
  await page.goto(`/group/${made.group}?refresh=off`);
  await press(page, "Cancel…");
  await page.getByText(/unresolved tasks? of the group end/).waitFor();
  await press(page, "Cancel these tasks");
  await says(page, /^\d tasks? of 3 w(as|ere) cancelled\.$/);
  // A moment later, the ends of the tasks are in the list of failures.
  const counted = page.getByText(/cancelled ones among them: [1-9]/);
  const form = `/group/${made.group}/rerun-failed`;
  await page.goto(form);
  for (let tries = 0; tries < 100 && (await counted.count()) === 0; tries += 1) await page.goto(form);
  await page.goto(`/group/${made.group}?refresh=off`);
  await press(page, "Rerun failed…");
  await page.getByLabel("Tasks that ended as").selectOption("exception");
  await press(page, "Run these tasks again");
  await says(page, "The job was started.");
  await ends(page);
  await page.getByText(/[1-9] of \d tasks changed/).waitFor();
}

async function actOnQueue(page, made, screenshot, name) {
  const path = `/queue/${made.queue}?refresh=off`;
  await page.goto(path);
  await fits(page);
  await screenshot(`queue-${name}`, page, { fullPage: true });
  await press(page, "Policy…");
  await page.getByLabel("Policy").fill(JSON.stringify({ dispatch: "assign", concurrency: { perKey: 2 } }));
  await press(page, "Show what it means");
  await page.getByText("At most 2 runs of each key at a time.").waitFor();
  await fits(page);
  await screenshot(`policy-${name}`, page, { fullPage: true });
  await press(page, "Store the policy");
  await says(page, /^The policy has version \d+\.$/);
  await page.goto(path);
  await press(page, "Limits of a key…");
  await page.getByLabel("Key").fill("acme");
  await page.getByLabel("Concurrency").fill("many");
  await press(page, "Store the limits");
  await page.getByRole("alert").filter({ hasText: "concurrency" }).waitFor();
  await page.getByLabel("Concurrency").fill("5");
  await press(page, "Store the limits");
  await says(page, 'The limits of key "acme" are stored.');
  await page.goto(path);
  await press(page, "Delete the limits of a key…");
  await page.getByLabel("Key").fill("acme");
  await press(page, "Show the limits");
  await page.getByText("Concurrency: 5").waitFor();
  await press(page, "Delete the limits");
  await says(page, 'Key "acme" has no limits of its own.');
  const replace = page.getByRole("link", { name: "Replace the scheduler…" });
  for (let tries = 0; tries < 100 && (await replace.count()) === 0; tries += 1) await page.goto(path);
  await press(page, "Replace the scheduler…");
  await press(page, "Replace the scheduler");
  await says(page, /^The scheduler was replaced: term \d+\.$/);
  await page.goto(path);
  await press(page, "Delete the policy…");
  await press(page, "Delete the policy");
  await says(page, "The queue has no policy.");
}

async function actOnWorker(page, made, screenshot, name) {
  await page.goto(`/session/${made.sessionId}?refresh=off`);
  await fits(page);
  await screenshot(`session-${name}`, page, { fullPage: true });
  await press(page, "Freeze");
  await says(page, "The command freeze is in the inbox of the session.");
  await page.goto(`/session/${made.sessionId}/unfreeze`);
  await press(page, "Unfreeze");
  await says(page, "The command unfreeze is in the inbox of the session.");
  await page.goto(`/session/${made.sessionId}?refresh=off`);
  await press(page, "Stop a task…");
  await page.getByLabel("Task").fill(made.running);
  await press(page, "Stop the task");
  await says(page, "The command stop-task is in the inbox of the session.");
  await page.goto(`/session/${made.sessionId}?refresh=off`);
  await press(page, "Shut down…");
  await press(page, "Shut the worker down");
  await says(page, "The command shutdown is in the inbox of the session.");
  await page.goto(`/session/${made.sessionId}?refresh=off`);
  await press(page, "End…");
  await press(page, "End the session");
  await says(page, /^The session has ended; \d runs? left it\.$/);
  const path = `/worker/${made.workerGroup}/${made.workerId}?refresh=off`;
  await page.goto(path);
  await fits(page);
  await press(page, "Quarantine…");
  await page.getByLabel("Reason").fill("its disk is full");
  await page.getByLabel("Until").selectOption({ label: "an hour from now" });
  await press(page, "Quarantine the worker");
  await says(page, /^The worker is quarantined until /);
  await page.goto(path);
  await press(page, "Lift the quarantine");
  await says(page, "The quarantine is lifted.");
  await page.goto(path);
  await press(page, "Declare gone…");
  await press(page, "Declare the worker gone");
  await says(page, /^The worker is gone; \d runs? w(as|ere) ended\.$/);
}

// Shows the page of a job until its bar of progress is gone.
async function ends(page) {
  const path = `${new URL(page.url()).pathname}?refresh=off`;
  for (let tries = 0; tries < 100; tries += 1) {
    await page.goto(path);
    if ((await page.locator("progress").count()) === 0) return;
  }
  assert.fail(`${path} does not end`);
}

async function actOnJobs(page, { api, screenshot }, name) {
  const { queue, waiting } = await fill(api);
  const list = `/tasks?queue=${encodeURIComponent(queue)}`;
  await page.goto(`${list}&state=pending`);
  await page.getByLabel(`Select ${waiting.slice(0, 8)}`).check();
  await page.getByLabel("New priority").first().selectOption("high");
  await press(page, "Change priority");
  await page.getByText("Their priority becomes high.").waitFor();
  await fits(page);
  await press(page, "Start the job");
  await says(page, "The job was started.");
  await ends(page);
  await page.getByText("1 of 1 tasks changed").waitFor();
  const changed = (await api("GET", `/api/queue/v1/task/${waiting}/status`)).status;
  assert.equal(changed.priority, "high");
  await page.goto(`${list}&state=pending`);
  await fits(page);
  await page.getByLabel(`Select ${waiting.slice(0, 8)}`).check();
  await press(page, "Cancel");
  await page.getByText("1 task. ").waitFor();
  await fits(page);
  await screenshot(`job-question-${name}`, page, { fullPage: true });
  await press(page, "Start the job");
  await says(page, "The job was started.");
  await ends(page);
  await page.getByText("1 of 1 tasks changed").waitFor();
  await fits(page);
  await screenshot(`job-${name}`, page, { fullPage: true });
  // A moment later, the end of the task is in the list of failures.
  const all = page.getByRole("group", { name: "All tasks that match" });
  for (let tries = 0; tries < 100 && (await all.count()) === 0; tries += 1) await page.goto(`${list}&state=exception`);
  const loaded = page.waitForEvent("domcontentloaded");
  await all.getByRole("button", { name: "Rerun" }).press("Enter");
  await loaded;
  await page.getByText(`tenure task rerun --queue ${queue} --state exception`).waitFor();
  await press(page, "Start the job");
  await says(page, "The job was started.");
  await ends(page);
  await page.getByText("1 of 1 tasks changed").waitFor();
  const { status } = await api("GET", `/api/queue/v1/task/${waiting}/status`);
  assert.equal(status.state, "pending", "it was cancelled and rerun");
  await page.goto("/jobs?refresh=off");
  await fits(page);
}

// Runs a dead letter again, and then resumes a subscription whose receiver cannot be reached.
async function actOnFailures(page, { api }) {
  const [queue, name] = [`proj-actions/q${randomBytes(6).toString("hex")}`, `s${randomBytes(4).toString("hex")}`];
  const deadline = new Date(Date.now() + 3_600_000).toISOString();
  const worker = { workerGroup: "rack", workerId: `worker-${slug()}`, tasks: 1 };
  const claim = async () => (await api("POST", `/api/queue/v1/claim-work/${encodeURIComponent(queue)}`, worker)).tasks[0];
  const end = ({ status, runId }, how) => api("POST", `/api/queue/v1/task/${status.taskId}/runs/${runId}/${how}`);
  await api("PUT", `/api/tenure/v1/queues/${encodeURIComponent(queue)}/policy`, { deadLetters: true });
  await api("POST", "/api/tenure/v1/tasks", { tasks: [{ taskQueueId: queue, deadline, payload: { command: ["make"] } }] });
  await end(await claim(), "failed");
  const path = `/queue/${queue}?refresh=off`;
  const redrive = page.getByRole("link", { name: "Run failed tasks again…" });
  for (let tries = 0; tries < 100 && (await redrive.count()) === 0; tries += 1) await page.goto(path);
  await fits(page);
  await press(page, "Run failed tasks again…");
  await press(page, "Run them again");
  await says(page, "Tasks run again: 1. Copied: 0. Refused: 0.");
  const subscription = `/api/tenure/v1/subscriptions/${name}`;
  // By default no server sends to an address of its own machine.
  await api("PUT", subscription, { to: { webhook: { url: "https://localhost:9/" } }, exchange: ["task-completed"] });
  await end(await claim(), "completed");
  const resume = page.locator(`form[action$="/subscription/${name}/resume"] button`);
  for (let tries = 0; tries < 300 && (await resume.count()) === 0; tries += 1) await page.goto("/?refresh=off");
  await fits(page);
  const loaded = page.waitForEvent("domcontentloaded");
  await resume.press("Enter");
  await loaded;
  await says(page, "The subscription is resumed.");
  await api("DELETE", subscription);
}

async function actOnAccess(page, screenshot, name) {
  const client = `acme/${randomBytes(4).toString("hex")}`;
  await page.goto("/access");
  await fits(page);
  await screenshot(`access-${name}`, page, { fullPage: true });
  await press(page, "Create a client…");
  await page.getByLabel("Id").fill(client);
  await page.getByLabel("Scopes").fill("a**");
  await press(page, "Create the client");
  await page.getByRole("alert").filter({ hasText: "scopes" }).waitFor();
  await page.getByLabel("Scopes").fill("queue:claim-work:acme/*");
  await press(page, "Create the client");
  await page.getByText("it cannot be shown again").waitFor();
  const token = await page.locator("pre.token").innerText();
  await fits(page);
  await screenshot(`token-${name}`, page, { fullPage: true });
  await press(page, "Go to the client");
  await fits(page);
  assert.ok(!(await page.content()).includes(token), "the token is shown once");
  await screenshot(`client-${name}`, page, { fullPage: true });
  await press(page, "Change…");
  await page.getByLabel("Description").fill("builds");
  await press(page, "Change the client");
  await says(page, "The client is changed.");
  await press(page, "Disable…");
  await press(page, "Disable the client");
  await says(page, "The client is disabled.");
  await press(page, "Enable");
  await says(page, "The client is enabled.");
  await press(page, "Reset the token…");
  await press(page, "Reset the token");
  assert.notEqual(await page.locator("pre.token").innerText(), token);
  await press(page, "Go to the client");
  await press(page, "Delete…");
  await press(page, "Delete the client");
  await says(page, `Client ${client} is deleted.`);
  const role = `team-${randomBytes(4).toString("hex")}`;
  await press(page, "Create a role…");
  await page.getByLabel("Id").fill(role);
  await page.getByLabel("Scopes").fill("queue:claim-work:acme/*");
  await press(page, "Create the role");
  await says(page, "The role is created.");
  await press(page, "Change…");
  await page.getByLabel("Description").fill("Workers of acme");
  await press(page, "Change the role");
  await says(page, "The role is changed.");
  await press(page, "Delete…");
  await press(page, "Delete the role");
  await says(page, `Role ${role} is deleted.`);
}

async function actOnAll(tools, device, name) {
  const page = await tools.newPage(device);
  if (device.javaScriptEnabled !== false) checks.set(page, tools.axe);
  const made = await fill(tools.api);
  await logIn(page, tools.root);
  await actOnTasks(page, made, tools.screenshot, name);
  await actOnQueue(page, made, tools.screenshot, name);
  await actOnWorker(page, made, tools.screenshot, name);
  await actOnGroup(page, made);
  await actOnJobs(page, tools, name);
  await actOnFailures(page, tools);
  await actOnAccess(page, tools.screenshot, name);
}

export default {
  "each action is done by keyboard": async (tools) => {
    tools.expectConsole(/status of 400/);
    await actOnAll(tools, {}, "desktop");
  },

  "each action is done without scripts, on a phone": async (tools) => {
    tools.expectConsole(/status of 400/);
    await actOnAll(tools, { ...PHONE, javaScriptEnabled: false }, "phone");
  },

  "buttons without their scopes are disabled and name them": async (tools) => {
    const made = await fill(tools.api);
    const accessToken = (await tools.api("PUT", `/api/auth/v1/clients/${encodeURIComponent("looker")}`, {
      expires: new Date(Date.now() + 3_600_000).toISOString(),
      description: "",
      scopes: ["tenure:get-queue:*", "auth:get-client:looker", "auth:list-roles"],
    })).accessToken;
    const { page } = tools;
    checks.set(page, tools.axe);
    await logIn(page, { clientId: "looker", accessToken });
    for (const [path, button, scope] of [
      [`/task/${made.waiting}`, "Cancel…", `tenure:cancel-task:${made.queue}`],
      [`/group/${made.group}`, "Seal…", `queue:seal-task-group:-/${made.group}`],
      [`/queue/${made.queue}`, "Policy…", `tenure:manage-queue:${made.queue}`],
      [`/session/${made.sessionId}`, "Freeze", `tenure:command-worker:${made.queue}`],
      [`/worker/${made.workerGroup}/${made.workerId}`, "Quarantine…", "queue:quarantine-worker:"],
      ["/tasks", "Change tasks", "tenure:start-job"],
      ["/access", "Create a client…", "auth:create-client:*"],
      ["/client/looker", "Disable…", "auth:disable-client:looker"],
    ]) {
      await page.goto(`${path}?refresh=off`);
      const found = page.getByRole("button", { name: button, exact: true });
      assert.ok(await found.isDisabled(), `${button} of ${path}`);
      assert.ok((await page.locator("main").innerText()).includes(scope), `${path} names ${scope}`);
      await fits(page);
    }
    await tools.screenshot("without-scopes", page, { fullPage: true });
  },

  "a running job is stopped": async ({ api, page, root, screenshot }) => {
    const queue = `proj-actions/q${randomBytes(6).toString("hex")}`;
    const deadline = new Date(Date.now() + 3_600_000).toISOString();
    const task = { taskQueueId: queue, deadline, payload: { command: [["make"]] } };
    // Seconds of work, so that the page is shown meanwhile.
    for (let n = 0; n < 10; n += 1) await api("POST", "/api/tenure/v1/tasks", { tasks: Array(1_000).fill(task) });
    await logIn(page, root);
    const { jobId } = await api("POST", "/api/tenure/v1/jobs", {
      action: "cancel",
      filter: { taskQueueId: queue, state: "pending" },
    });
    await page.goto(`/jobs/${jobId}?refresh=off`);
    await fits(page);
    const stop = page.getByRole("button", { name: "Stop" });
    const loaded = page.waitForEvent("domcontentloaded");
    await stop.press("Enter");
    await loaded;
    await says(page, "The job is stopped.");
    await page.getByText(`Stopped by ${root.clientId}.`).waitFor();
    assert.equal(await stop.count(), 0, "a job that has ended cannot be stopped");
    await fits(page);
    await screenshot("job-stopped", page, { fullPage: true });
    const job = await api("GET", `/api/tenure/v1/jobs/${jobId}`);
    assert.equal(job.state, "stopped");
    assert.ok(job.done < job.found, `${job.done} of ${job.found} tasks were changed`);
  },

  "a form of another session is refused": async (tools) => {
    tools.expectConsole(/status of 403/);
    const made = await fill(tools.api);
    const { page } = tools;
    await logIn(page, tools.root);
    await page.goto(`/task/${made.waiting}/cancel`);
    // Another login of the same client begins while the form is open.
    await page.context().clearCookies();
    const other = await page.context().newPage();
    await logIn(other, tools.root);
    await page.getByRole("button", { name: "Cancel the task" }).click();
    await page.getByText("belongs to another session").waitFor();
    const { status } = await tools.api("GET", `/api/queue/v1/task/${made.waiting}/status`);
    assert.equal(status.state, "pending");
  },
};
