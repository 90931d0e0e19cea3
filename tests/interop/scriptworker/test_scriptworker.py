"""Tasks that a real scriptworker runs: claims, renewals, uploads, reports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import taskcluster

from conftest import HERE, ROOT, ROOT_URL, anonymous_queue, queue, wait_for

# scriptworker's report for each exit code of the script.
EXIT_CODES = [
    (1, "failed", "failed"),
    (3, "exception", "malformed-payload"),
    (4, "exception", "resource-unavailable"),
    (5, "exception", "internal-error"),
]
RETRIED = [(2, "worker-shutdown", "retry"), (7, "intermittent-task", "task-retry")]
LOG = "public/logs/live_backing.log"


def download(task_id, name):
    answer = requests.get(anonymous_queue().getLatestArtifact(task_id, name)["url"], timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def names(task_id):
    return {artifact["name"] for artifact in queue().listLatestArtifacts(task_id)["artifacts"]}


def test_a_task_is_run_its_files_are_uploaded_and_it_is_completed(worker):
    script = """
        echo "the script says hello, Grüße"
        echo "an error" >&2
        mkdir -p "$ARTIFACTS/public/build"
        printf 'plain' >"$ARTIFACTS/public/build/target.bin"
        printf '{"answer": 42}' >"$ARTIFACTS/public/build/target.json"
    """
    task_id = worker.submit(script)
    status = worker.wait_for_end(task_id)
    [run] = status["runs"]
    assert (status["state"], run["reasonResolved"]) == ("completed", "completed")
    assert (run["workerGroup"], run["workerId"]) == ("interop", worker.worker_id)
    chain = {"public/chain-of-trust.json", "public/chain-of-trust.json.sig"}
    assert names(task_id) == {LOG, "public/build/target.bin", "public/build/target.json", *chain}
    log = download(task_id, LOG)
    assert log.headers["content-type"].startswith("text/plain")
    # requests has decoded it.
    assert log.headers["content-encoding"] == "gzip"
    log.encoding = "utf-8"
    assert "the script says hello, Grüße" in log.text
    assert "an error" in log.text
    assert "exit code: 0" in log.text
    assert download(task_id, "public/build/target.json").json() == {"answer": 42}
    plain = download(task_id, "public/build/target.bin")
    assert plain.content == b"plain"
    assert "content-encoding" not in plain.headers


def test_artifacts_live_as_long_as_their_task(worker):
    task_id = worker.submit("true", expires=taskcluster.fromNowJSON("2 days"))
    worker.wait_for_end(task_id)
    definition = queue().task(task_id)
    for artifact in queue().listLatestArtifacts(task_id)["artifacts"]:
        assert artifact["expires"] == definition["expires"]
        assert artifact["storageType"] == "s3"


def test_the_chain_of_trust_has_the_task_as_it_was_claimed(worker):
    task_id = worker.submit("true")
    worker.wait_for_end(task_id)
    chain = download(task_id, "public/chain-of-trust.json").json()
    assert (chain["taskId"], chain["runId"], chain["workerType"]) == (task_id, 0, worker.worker_type)
    assert chain["task"] == queue().task(task_id)


def test_the_script_gets_credentials_of_its_run(worker):
    script = 'cat <&"$TASKCLUSTER_CREDENTIALS_FD" >"$ARTIFACTS/credentials.json"'
    task_id = worker.submit(script, scopes=["interop:something"])
    worker.wait_for_end(task_id)
    assert "credentials.json" in names(task_id)
    url = queue().buildSignedUrl("getLatestArtifact", task_id, "credentials.json")
    kept = requests.get(url, timeout=60).json()
    credentials = kept.get("credentials", kept)
    assert credentials["clientId"].startswith(f"task-client/{task_id}/0/on/interop/{worker.worker_id}/until/")
    auth = taskcluster.Auth({"rootUrl": ROOT_URL, "credentials": credentials})
    scopes = set(auth.currentScopes()["scopes"])
    assert {"interop:something", f"queue:resolve-task:{task_id}/0", f"queue:create-artifact:{task_id}/0"} <= scopes


@pytest.mark.parametrize(("code", "state", "reason"), EXIT_CODES)
def test_the_exit_code_decides_how_the_task_ends(worker, code, state, reason):
    task_id = worker.submit(f"echo ends with {code}; exit {code}")
    status = worker.wait_for_end(task_id)
    [run] = status["runs"]
    assert (status["state"], run["state"], run["reasonResolved"]) == (state, state, reason)
    assert f"exit code: {code}" in download(task_id, LOG).text


@pytest.mark.parametrize(("code", "reason", "created"), RETRIED)
def test_some_exit_codes_ask_for_another_try(worker, code, reason, created):
    # The next run sees its own number.
    task_id = worker.submit(f'[ "$RUN_ID" -gt 0 ] || exit {code}')
    status = wait_for(lambda: (answer := queue().status(task_id)["status"])["state"] == "completed" and answer)
    first, second = status["runs"]
    assert (first["state"], first["reasonResolved"]) == ("exception", reason)
    assert (second["state"], second["reasonCreated"]) == ("completed", created)
    assert status["retriesLeft"] == 4
    # The first run's log still exists, and differs.
    first_log = queue().getArtifact(task_id, "0", LOG)
    assert f"exit code: {code}" in requests.get(first_log["url"], timeout=60).text
    assert "exit code: 0" in download(task_id, LOG).text


def test_a_task_that_takes_long_is_renewed(worker):
    task_id = worker.submit('until [ -e "$WORK/../go-on" ]; do sleep 0.1; done')
    worker.wait_until_running(task_id)

    def taken_until():
        return queue().status(task_id)["status"]["runs"][0]["takenUntil"]

    first = taken_until()
    wait_for(lambda: taken_until() > first)
    (worker.folder / "go-on").touch()
    assert worker.wait_for_end(task_id)["state"] == "completed"


def test_a_task_that_is_cancelled_is_killed(worker):
    started = worker.folder / "started"
    task_id = worker.submit('echo $$ >"$WORK/../started.new"; mv "$WORK/../started.new" "$WORK/../started"; sleep 600')
    wait_for(started.exists)
    process = Path("/proc") / started.read_text().strip()
    assert process.exists()
    queue().cancelTask(task_id)
    wait_for(lambda: not process.exists())
    status = queue().status(task_id)["status"]
    assert (status["state"], status["runs"][0]["reasonResolved"]) == ("exception", "canceled")
    # The worker continues.
    assert worker.wait_for_end(worker.submit("true"))["state"] == "completed"


def test_a_worker_that_is_stopped_reports_worker_shutdown(another_worker):
    started = another_worker.folder / "started"
    task_id = another_worker.submit('touch "$WORK/../started"; sleep 600')
    wait_for(started.exists)
    assert another_worker.terminate() == 0
    status = queue().status(task_id)["status"]
    lost, waiting = status["runs"]
    assert (lost["state"], lost["reasonResolved"]) == ("exception", "worker-shutdown")
    assert (waiting["state"], waiting["reasonCreated"]) == ("pending", "retry")


def test_private_files_with_unusual_names_can_be_read_by_the_next_task(worker, tmp_path):
    wanted = {
        "public/build/plain.bin": "public",
        "private/a b.bin": "a blank",
        "private/a:b@c,d(e).bin": "what aiohttp shows as it is",
        "private/a%2Fb+c.bin": "what looks encoded",
    }
    script = "\n".join(
        f'mkdir -p "$ARTIFACTS/$(dirname "{name}")"; printf %s "{text}" >"$ARTIFACTS/{name}"'
        for name, text in wanted.items()
    )
    task_id = worker.submit(script)
    assert worker.wait_for_end(task_id)["state"] == "completed"
    assert set(wanted) <= names(task_id)
    reader = json.loads(worker.config.read_text())
    reader["credentials"] = reader_credentials()
    config = tmp_path / "reader.json"
    config.write_text(json.dumps(reader))
    command = [sys.executable, str(HERE / "download.py"), str(config), str(tmp_path / "got"), task_id, *wanted]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    read = [Path(path).read_text() for path in done.stdout.splitlines()]
    assert read == list(wanted.values())


def reader_credentials():
    """Credentials as a task has them that may read private files."""
    auth = taskcluster.Auth({"rootUrl": ROOT_URL, "credentials": dict(ROOT)})
    name = "interop/reader-" + taskcluster.slugId()
    scopes = ["queue:get-artifact:private/*"]
    made = auth.createClient(name, {"description": "", "expires": taskcluster.fromNowJSON("1 day"), "scopes": scopes})
    return {"clientId": made["clientId"], "accessToken": made["accessToken"]}


def test_no_signature_is_written_to_logs(worker):
    task_id = worker.submit("true")
    worker.wait_for_end(task_id)
    # The upload target, without the secret part of the URL.
    uploads = [line for line in worker.output().splitlines() if "uploading" in line and task_id in line]
    assert uploads
    for line in uploads:
        assert "?<snip>" in line and "signature" not in line, line
