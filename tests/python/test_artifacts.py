"""Artifacts through the unmodified official client, with its helpers for uploads and downloads."""

import gzip
import io
import secrets

import pytest
import requests
import taskcluster
import taskcluster.download
import taskcluster.upload
from taskcluster.exceptions import TaskclusterArtifactError, TaskclusterRestFailure

from tasks import claim_one, create


@pytest.fixture
def run(server, queue, queue_id):
    """A claimed run: its task, its number, and the official client with the credentials of the claim."""
    task_id = create(queue, queue_id)
    claim = claim_one(queue, queue_id)
    return task_id, claim["runId"], server.queue(claim["credentials"])


def expires():
    return taskcluster.stringDate(taskcluster.fromNow("1 hour"))


def upload(worker, task_id, run_id, name, data, content_type="text/plain", encoding=None):
    asked = {"storageType": "s3", "contentType": content_type, "expires": expires()}
    answer = worker.createArtifact(task_id, run_id, name, asked)
    headers = {"Content-Type": content_type, **({"Content-Encoding": encoding} if encoding else {})}
    response = requests.put(answer["putUrl"], data=data, headers=headers, timeout=60)
    assert response.status_code == 200, response.text


def refused(status, call, *args, **kwargs):
    with pytest.raises(TaskclusterRestFailure) as failure:
        call(*args, **kwargs)
    assert failure.value.status_code == status, failure.value
    return failure.value.body["code"]


def test_bytes_are_uploaded_and_read_by_any_client(server, run):
    task_id, run_id, worker = run
    data = secrets.token_bytes(300_000)
    upload(worker, task_id, run_id, "public/build/app.bin", data, "application/octet-stream")
    anonymous = server.anonymous_queue()
    found = anonymous.getLatestArtifact(task_id, "public/build/app.bin")
    assert found["storageType"] == "s3"
    assert requests.get(found["url"], timeout=60).content == data
    assert anonymous.getArtifact(task_id, run_id, "public/build/app.bin")["storageType"] == "s3"
    # As browsers and scripts request it: with literal slashes, following the redirection.
    url = f"{server.root_url}/api/queue/v1/task/{task_id}/artifacts/public/build/app.bin"
    response = requests.get(url, timeout=60)
    assert (response.content, response.headers["Content-Type"]) == (data, "application/octet-stream")
    for run_of in ({}, {"runId": run_id}):
        buffer, content_type = taskcluster.download.downloadArtifactToBuf(
            taskId=task_id, name="public/build/app.bin", queueService=anonymous, **run_of
        )
        assert (bytes(buffer), content_type) == (data, "application/octet-stream")
    info = anonymous.latestArtifactInfo(task_id, "public/build/app.bin")
    assert (info["contentType"], info["size"]) == ("application/octet-stream", len(data))


def test_a_live_log_becomes_a_link(server, run):
    task_id, run_id, worker = run
    reference = {"storageType": "reference", "url": "https://example.com/live", "contentType": "text/plain"}
    worker.createArtifact(task_id, run_id, "public/live.log", {**reference, "expires": expires()})
    assert worker.getLatestArtifact(task_id, "public/live.log")["url"] == "https://example.com/live"
    upload(worker, task_id, run_id, "public/backing.log", b"the log")
    link = {"storageType": "link", "artifact": "public/backing.log", "expires": expires()}
    worker.createArtifact(task_id, run_id, "public/live.log", link)
    buffer, _ = taskcluster.download.downloadArtifactToBuf(
        taskId=task_id, name="public/live.log", queueService=server.anonymous_queue()
    )
    assert bytes(buffer) == b"the log"
    assert refused(409, worker.createArtifact, task_id, run_id, "public/live.log", {**reference, "expires": expires()})


def test_an_error_is_raised_by_who_downloads_it(server, run):
    task_id, run_id, worker = run
    error = {"storageType": "error", "reason": "too-large-file-on-worker", "message": "100 GB", "expires": expires()}
    assert worker.createArtifact(task_id, run_id, "public/x", error) == {"storageType": "error"}
    with pytest.raises(TaskclusterArtifactError) as failure:
        taskcluster.download.downloadArtifactToBuf(
            taskId=task_id, name="public/x", queueService=server.anonymous_queue()
        )
    assert failure.value.reason == "too-large-file-on-worker"
    url = server.anonymous_queue().buildUrl("getLatestArtifact", task_id, "public/x")
    response = requests.get(url, timeout=60)
    assert (response.status_code, response.json()["message"]) == (424, "100 GB")


@pytest.mark.parametrize("size", [0, 100, 8191, 8192, 200_000])
def test_an_object_is_uploaded_and_downloaded_by_the_helpers(server, run, size):
    task_id, run_id, worker = run
    data = secrets.token_bytes(size)
    asked = {"storageType": "object", "contentType": "application/zip", "contentLength": size, "expires": expires()}
    made = worker.createArtifact(task_id, run_id, "public/a zip:file@1(2)", asked)
    service = taskcluster.Object({"rootUrl": server.root_url, "credentials": made["credentials"], "maxRetries": 0})
    taskcluster.upload.uploadFromBuf(
        data=data,
        projectId=made["projectId"],
        name=made["name"],
        contentType="application/zip",
        contentLength=size,
        expires=made["expires"],
        uploadId=made["uploadId"],
        maxRetries=0,
        objectService=service,
    )
    worker.finishArtifact(task_id, run_id, "public/a zip:file@1(2)", {"uploadId": made["uploadId"]})
    file = io.BytesIO()
    content_type = taskcluster.download.downloadArtifactToFile(
        file, taskId=task_id, name="public/a zip:file@1(2)", queueService=server.anonymous_queue(), maxRetries=0
    )
    assert (file.getvalue(), content_type) == (data, "application/zip")


def test_a_private_artifact_is_read_by_a_signed_url_only(server, run):
    task_id, run_id, worker = run
    name = "private/a:b@c,(d).log"
    upload(worker, task_id, run_id, name, b"secret")
    anonymous = server.anonymous_queue()
    assert refused(403, anonymous.getLatestArtifact, task_id, name) == "InsufficientScopes"
    assert requests.get(anonymous.buildUrl("getLatestArtifact", task_id, name), timeout=60).status_code == 403
    signed = server.queue().buildSignedUrl("getLatestArtifact", task_id, name)
    assert requests.get(signed, timeout=60).content == b"secret"
    # Another library's handling of the URL.
    path, query = signed.split("?")
    for escaped, plain in (("%3A", ":"), ("%40", "@"), ("%2C", ","), ("%28", "("), ("%29", ")")):
        assert escaped in path
        path = path.replace(escaped, plain)
    session = requests.Session()
    prepared = session.prepare_request(requests.Request("GET", signed))
    prepared.url = f"{path}?{query}"
    assert session.send(prepared, timeout=60).content == b"secret"


def test_lists_come_in_pages(server, run):
    task_id, run_id, worker = run
    names = sorted(f"public/{n}" for n in range(7))
    for name in names:
        link = {"storageType": "link", "artifact": "x", "expires": expires()}
        worker.createArtifact(task_id, run_id, name, link)
    anonymous = server.anonymous_queue()
    pages = []
    anonymous.listArtifacts(task_id, run_id, query={"limit": 3}, paginationHandler=pages.append)
    assert [len(page["artifacts"]) for page in pages] == [3, 3, 1]
    assert [one["name"] for page in pages for one in page["artifacts"]] == names
    assert anonymous.listLatestArtifacts(task_id) == anonymous.listArtifacts(task_id, run_id)
    assert anonymous.artifactInfo(task_id, run_id, names[0]) == pages[0]["artifacts"][0]
    assert refused(404, anonymous.artifactInfo, task_id, run_id, "none") == "ResourceNotFound"


def test_a_compressed_log_is_read_as_it_was_written(server, run):
    task_id, run_id, worker = run
    text = b"line\n" * 10_000
    upload(worker, task_id, run_id, "public/log.txt", gzip.compress(text), encoding="gzip")
    url = server.anonymous_queue().buildUrl("getLatestArtifact", task_id, "public/log.txt")
    assert requests.get(url, timeout=60).content == text
    buffer, _ = taskcluster.download.downloadArtifactToBuf(
        taskId=task_id, name="public/log.txt", queueService=server.anonymous_queue()
    )
    assert bytes(buffer) == text


def test_only_the_worker_makes_artifacts_and_only_while_it_has_the_run(server, queue, run):
    task_id, run_id, worker = run
    asked = {"storageType": "s3", "contentType": "text/plain", "expires": expires()}
    assert refused(403, server.anonymous_queue().createArtifact, task_id, run_id, "x", asked) == "InsufficientScopes"
    assert refused(400, worker.createArtifact, task_id, run_id, "x", {**asked, "storageType": "azure"})
    worker.createArtifact(task_id, run_id, "x", asked)
    queue.reportCompleted(task_id, run_id)
    assert refused(409, worker.createArtifact, task_id, run_id, "y", asked) == "RequestConflict"
