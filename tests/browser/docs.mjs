// The user interface of the OpenAPI document at /docs, in a browser that may ask no other server.
// The browser creates a task and reads its status.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

/** Opens the interface and says who calls. */
async function open({ page, root }) {
  await page.goto("/docs");
  await page.waitForSelector("#operations-queue-createTask");
  await page.click(".scheme-container button.authorize");
  const basic = page.locator(".auth-container").filter({ hasText: /basic\s*\(http/ });
  await basic.locator("#auth-basic-username, #auth_username").fill(root.clientId);
  await basic.locator("#auth-basic-password, #auth_password").fill(root.accessToken);
  await basic.locator("button.authorize").click();
  await basic.locator("button", { hasText: "Logout" }).waitFor();
  await page.click(".modal-ux button.btn-done");
}

/** Unfolds an operation. */
async function unfold(page, tag, name) {
  const operation = page.locator(`#operations-${tag}-${name}`);
  await operation.locator(".opblock-summary-control").click();
  await operation.locator("button.execute").waitFor();
  return operation;
}

/** Sends what is filled in, and gives the answer's status and JSON. */
async function execute(page, operation) {
  const answered = page.waitForResponse((response) => new URL(response.url()).pathname.startsWith("/api/"));
  await operation.locator("button.execute").click();
  const answer = await answered;
  await operation.locator(".live-responses-table .response-col_status").first().waitFor();
  const shown = await operation.locator(".live-responses-table tr.response .response-col_status").first().innerText();
  assert.equal(Number.parseInt(shown, 10), answer.status(), "the page shows the status of the answer");
  return { status: answer.status(), url: answer.url(), body: await answer.json() };
}

export default {
  "a task is created and its status is read without leaving the page": async (tools) => {
    const { page, screenshot, api, origin } = tools;
    await open(tools);
    await screenshot("overview");

    const create = await unfold(page, "queue", "createTask");
    const taskId = await create.locator('tr[data-param-name="taskId"] input').inputValue();
    const sent = JSON.parse(await create.locator("textarea.body-param__text").inputValue());
    sent.metadata.name = "from the browser";
    await create.locator("textarea.body-param__text").fill(JSON.stringify(sent, null, 2));
    const created = await execute(page, create);
    assert.equal(created.status, 200, JSON.stringify(created.body));
    assert.equal(created.url, `${origin}/api/queue/v1/task/${taskId}`);
    assert.equal(created.body.status.state, "pending");
    await create.locator(".live-responses-table").scrollIntoViewIfNeeded();
    await screenshot("created");
    await create.locator(".opblock-summary-control").click();

    const status = await unfold(page, "queue", "status");
    assert.equal(await status.locator('tr[data-param-name="taskId"] input').inputValue(), taskId);
    const read = await execute(page, status);
    assert.equal(read.status, 200);
    assert.deepEqual(read.body, created.body);
    await status.locator(".live-responses-table").scrollIntoViewIfNeeded();
    await screenshot("status");

    const stored = await api("GET", `/api/queue/v1/task/${taskId}`);
    assert.equal(stored.metadata.name, "from the browser");
  },

  "a queue's id with its slash arrives whole, and a caller without authorization learns which scopes are missing": async (tools) => {
    const { page, expectConsole } = tools;
    expectConsole(/status of 403/);
    await page.goto("/docs");
    await page.waitForSelector("#operations-queue-pendingTasks");
    const pending = await execute(page, await unfold(page, "queue", "pendingTasks"));
    assert.equal(pending.status, 200);
    assert.equal(pending.body.taskQueueId, "acme/linux");
    const refused = await execute(page, await unfold(page, "queue", "claimWork"));
    assert.equal(refused.status, 403);
    assert.equal(refused.body.code, "InsufficientScopes");
    await tools.screenshot("refused");
  },

  "the interface has names and enough contrast, in the light and in the dark": async (tools) => {
    // The page of the system needs a login.
    tools.expectConsole(/status of 403/);
    for (const colorScheme of ["light", "dark"]) {
      const page = await tools.newPage({ colorScheme });
      await page.goto("/docs");
      await page.waitForSelector("#operations-queue-createTask");
      await unfold(page, "queue", "createTask");
      await tools.screenshot(colorScheme, page);
      const serious = (await tools.axe(page)).filter(({ impact }) => ["serious", "critical"].includes(impact));
      assert.deepEqual(serious, [], colorScheme);
      await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "System" }).click();
      await page.waitForURL("**/system");
    }
  },

  "the document is valid OpenAPI 3.1": async ({ origin, require }) => {
    const { Validator } = await import(pathToFileURL(require.resolve("@seriousme/openapi-schema-validator")).href);
    const document = await (await fetch(`${origin}/openapi.json`)).json();
    const validator = new Validator();
    const result = await validator.validate(document);
    assert.ok(result.valid, JSON.stringify(result.errors, null, 2));
    assert.equal(validator.version, "3.1");
  },
};
