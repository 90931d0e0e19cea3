"""What Schemathesis cannot know of this server: how signed URLs are come by, what would end the run, and which answers
the document cannot promise.

No operation and no check is left out. What is changed here is changed in single requests:

* `situate` makes what paths and secrets name: tasks, artifacts, objects, workers, sessions, clients, roles.
* `protect` keeps the run's own account, and the public scopes, out of harm's way.
* `shorten` makes waiting short. `without_long_lists` leaves lists of ten thousand entries to other tests.
* `complete` brings about that most of the tasks and messages that are acceptable by their schema are acceptable by their
  dates and ids too; the others go out as they were made.
* `excuse` lists which failures of checks are none, and why.
"""

import atexit
import collections
import datetime
import itertools
import json
import os
import re
import urllib.parse
import uuid
from base64 import urlsafe_b64encode

import requests
import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.core.parameters import ParameterLocation
from schemathesis.openapi.checks import RejectedPositiveData, UndefinedStatusCode

ROOT_URL = os.environ["FUZZ_ROOT_URL"]
ACCOUNT = (os.environ["FUZZ_CLIENT_ID"], os.environ["FUZZ_ACCESS_TOKEN"])
TALLY = os.environ["FUZZ_TALLY"]
# The run needs these unchanged.
ACCOUNTS = {"root", ACCOUNT[0]}
# One in this many completable requests is sent unchanged.
RAW_EVERY = 5
MINUTE = 60
# Lists with at least this many entries are not tried at their limit.
LONG_LIST = 10_000
# The document's description of a runId.
RUN_ID = re.compile("[1-9]*[0-9]+")
# Tasks remembered as dependencies for others.
REMEMBERED = 20
QUEUE = {"provisionerId": "acme", "workerType": "linux", "taskQueueId": "acme/linux"}
# Content-Type of all uploads, covered by their signature.
BYTES = "application/octet-stream"
# Longest wait, and its parameter.
WAITS = {"waitForTask": ("seconds", 60), "sessionInbox": ("wait", 30)}
# Operations that do not create the object in their path: it must exist.
NEED_WHAT_THEY_PUT = {"finishArtifact", "startDownload", "appendLiveLog", "putCheckpoint"}
# Operations that return an existing queue; a queue expires when the clock has moved far since its
# use.
READ_A_QUEUE = {"getProvisioner", "getTaskQueue", "getWorkerType"}

session = requests.Session()
session.trust_env = False
turns = itertools.count(1)
tasks = collections.deque(maxlen=REMEMBERED)
# True if the queue may be paused, or have a policy with delays.
is_queue_changed = False
# Advance of the manual clock.
ahead = datetime.timedelta()
tally = collections.defaultdict(collections.Counter)


def name_of(operation):
    return operation.schema.get_operation_id(operation)


def is_negative(case, location):
    return case.meta is not None and case.meta.is_negative_at(location)


def is_made_freely(case):
    """Whether the request is not one that stands for a certain value, as those of the phase "coverage" do."""
    return case.meta is not None and case.meta.phase.name.value in ("fuzzing", "stateful")


def date_in(**later):
    time = datetime.datetime.now(datetime.timezone.utc) + ahead + datetime.timedelta(**later)
    return time.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def new_task_id():
    # The first bit is cleared, so that no id begins with a dash.
    first, *others = uuid.uuid4().bytes
    return urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")


def call(method, path, body=None):
    """Makes our own request, which must succeed."""
    answer = session.request(method, ROOT_URL + path, json=body, auth=ACCOUNT, timeout=30)
    answer.raise_for_status()
    return answer


# Slow requests -----------------------------------------------------------------------------------------------


def without_long_lists(schema):
    if isinstance(schema, dict):
        if isinstance(schema.get("maxItems"), int) and schema["maxItems"] >= LONG_LIST:
            del schema["maxItems"]
        for part in schema.values():
            without_long_lists(part)
    elif isinstance(schema, list):
        for part in schema:
            without_long_lists(part)


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Schemathesis tries each list at its limit, and past it. Ten thousand entries take it a minute, and make bodies of
    10 MB; these limits have tests of their own, beside the rules."""
    without_long_lists(raw_schema)


# Requests that would end the run --------------------------------------------------------------------------------------------------


def is_for_everybody(role_id):
    """Whether a role of this id gives something to callers without credentials, who then could not be refused. Some ids come as
    they are sent, with `%2A` for a star."""
    role_id = urllib.parse.unquote(role_id)
    return role_id == "anonymous" or (role_id.endswith("*") and "anonymous".startswith(role_id[:-1]))


def protect(case, name):
    path = case.path_parameters or {}
    if case.method != "GET" and path.get("clientId") in ACCOUNTS:
        path["clientId"] = "other-" + path["clientId"]
    if name in ("createRole", "updateRole", "deleteRole") and isinstance(path.get("roleId"), str) and is_for_everybody(path["roleId"]):
        path["roleId"] = "not-" + path["roleId"]


def shorten(case, name):
    """waitForTask waits up to a minute, an inbox half of one: where they would, a second does; a live log is not followed. What is over its limit stays
    what it is. And the clock mostly moves so little that tasks are still there afterwards."""
    query = case.query or {}
    if name == "getLiveLog" and str(query.get("follow")) == "1":
        # The run created for it does not end.
        query["follow"] = type(query["follow"])(0)
    if name in WAITS:
        parameter, most = WAITS[name]
        seconds = query.get(parameter)
        if isinstance(seconds, (int, str)) and re.fullmatch("[0-9]+", str(seconds)) and 1 < int(seconds) <= most:
            query[parameter] = type(seconds)(1)
        elif seconds is None and name == "sessionInbox" and not is_negative(case, ParameterLocation.QUERY):
            case.query = {**query, parameter: 1}
    if name == "advanceClock" and is_made_freely(case) and not is_negative(case, ParameterLocation.BODY):
        if isinstance(case.body, dict) and next(turns) % RAW_EVERY:
            case.body = {"seconds": case.body["seconds"] % MINUTE}


# Facts beyond the schema --------------------------------------------------------------------------------------------


def complete_task(task, submitted):
    """Dates close to now, one queue, existing dependencies."""
    if not isinstance(task, dict):
        return
    for field, value in (("created", date_in()), ("deadline", date_in(hours=1)), ("expires", date_in(days=1))):
        if field in task:
            task[field] = value
    named = [field for field in QUEUE if field in task]
    if len(named) != 1 or named == ["provisionerId"] or named == ["workerType"]:
        for field in named:
            del task[field]
        task.update(QUEUE if next(turns) % 2 else {"taskQueueId": QUEUE["taskQueueId"]})
    if task.get("dependencies"):
        count = min(len(task["dependencies"]), len(tasks))
        task["dependencies"] = [] if next(turns) % 2 else list(tasks)[:count]
    if submitted:
        # Groups belong to schedulers; a task's id would belong to another one.
        task.pop("taskGroupId", None)


def complete(case, name):
    if name not in ("createTask", "createTasks") or is_negative(case, ParameterLocation.BODY):
        return
    if not isinstance(case.body, dict) or next(turns) % RAW_EVERY == 0:
        return
    body = json.loads(json.dumps(case.body))
    if name == "createTask" and is_made_freely(case) and not is_negative(case, ParameterLocation.PATH):
        if next(turns) % RAW_EVERY:
            # Most ids would be those of existing tasks.
            case.path_parameters["taskId"] = new_task_id()
    several = body.get("tasks") if name == "createTasks" else None
    if isinstance(several, list):
        body.pop("taskGroupId", None)
        named = set()
        for task in several:
            complete_task(task, submitted=True)
            if isinstance(task, dict):
                # Each id and each name once.
                for field in ("taskId", "name"):
                    if field in task and task[field] in named:
                        del task[field]
                    named.add(task.get(field))
    else:
        complete_task(body, submitted=name == "createTasks")
        if name == "createTask" and next(turns) % 2:
            body.pop("taskGroupId", None)
    case.body = body


def let_queue_run():
    """Ends a pause, and a policy with delays: otherwise new tasks could be neither claimed nor polled."""
    global is_queue_changed
    if is_queue_changed:
        path = "/api/tenure/v1/queues/" + quoted(QUEUE["taskQueueId"])
        call("PUT", path + "/policy", {})
        call("POST", path + "/resume")
        is_queue_changed = False


def new_task():
    let_queue_run()
    task = {**QUEUE, "priority": "lowest", "created": date_in(), "deadline": date_in(hours=1), "payload": {}}
    texts = {"name": "made for a request", "description": "", "owner": "", "source": "https://example.com"}
    task_id = new_task_id()
    call("PUT", "/api/queue/v1/task/" + task_id, {**task, "metadata": texts})
    return task_id


def quoted(text):
    return urllib.parse.quote(text, safe="")


def claim(task):
    """By a separate worker: others may be quarantined, or gone."""
    worker = {"workerGroup": "rack-1", "workerId": "made-" + new_task_id()}
    call("POST", f"/api/queue/v1/task/{task}/runs/0/claim", worker)


def new_artifact(task, storage, **fields):
    """An artifact of a claimed run: its name, and the answer of createArtifact."""
    name = "logs/" + new_task_id()
    body = {"storageType": storage, "contentType": BYTES, "expires": date_in(minutes=50), **fields}
    return name, call("POST", f"/api/queue/v1/task/{task}/runs/0/artifacts/{quoted(name)}", body).json()


def new_stored_artifact(task):
    """Its name, and its upload URL."""
    name, answer = new_artifact(task, "s3")
    session.put(answer["putUrl"], data=b"hello", headers={"Content-Type": BYTES}, timeout=30).raise_for_status()
    return name, answer["putUrl"]


def new_object(name, upload, project="none"):
    """A readable object."""
    inline = {"dataInline": {"contentType": "text/plain", "objectData": "aGVsbG8="}}
    begin = {"projectId": project, "uploadId": upload, "expires": date_in(minutes=50), "proposedUploadMethods": inline}
    call("PUT", f"/api/object/v1/upload/{quoted(name)}", begin)
    call("POST", f"/api/object/v1/finish-upload/{quoted(name)}", {"projectId": project, "uploadId": upload})


def new_worker():
    """A worker that may register: its names, and its secret."""
    secret = new_task_id() * 2
    worker = {"workerPoolId": QUEUE["taskQueueId"], "workerGroup": "rack-1", "workerId": "made-" + new_task_id()}
    path = "/".join(quoted(part) for part in worker.values())
    body = {"expires": date_in(days=1), "providerInfo": {"staticSecret": secret}}
    call("PUT", "/api/worker-manager/v1/workers/" + path, body)
    return worker, secret


def new_session():
    """A session of a separate worker: no other request ends or blocks it."""
    worker = {"taskQueueId": QUEUE["taskQueueId"], "workerGroup": "rack-1", "workerId": "made-" + new_task_id()}
    return call("POST", "/api/tenure/v1/sessions", {**worker, "ttl": 3600}).json()["sessionId"]


def situate_artifact(case, name, task):
    path = case.path_parameters
    if name == "finishArtifact":
        expires = date_in(minutes=50)
        path["name"], answer = new_artifact(task, "object", expires=expires)
        new_object(answer["name"], answer["uploadId"], answer["projectId"])
        if not is_negative(case, ParameterLocation.BODY):
            case.body = {"uploadId": answer["uploadId"]}
    elif name != "createArtifact" and next(turns) % 2:
        path["name"], _ = new_artifact(task, "reference", url="https://example.com/live.log")
    elif name != "createArtifact":
        path["name"], _ = new_stored_artifact(task)


def situate_position(case, name):
    """The newest event: earlier ones may have expired when the clock has moved far."""
    if name == "listEvents" and not is_negative(case, ParameterLocation.QUERY):
        case.query = {**(case.query or {}), "after": "latest"}


def situate_secret(case, name):
    """Bodies with the secret of a worker."""
    if name not in ("registerWorker", "reregisterWorker") or is_negative(case, ParameterLocation.BODY):
        return
    worker, secret = new_worker()
    registering = {**worker, "providerId": "static", "workerIdentityProof": {"staticSecret": secret}}
    if name == "registerWorker":
        case.body = registering
    else:
        answer = call("POST", "/api/worker-manager/v1/worker/register", registering).json()
        case.body = {**worker, "secret": answer["secret"]}


def situate(case, name):
    """Makes what a request names: a queue, a task, its group, a run that is claimed, its artifact, an object, a worker, a session, a
    client, a role. Always for the examples of the document, and for every other request of the phase "fuzzing"."""
    phase = case.meta.phase.name.value if case.meta is not None else ""
    if phase not in ("examples", "fuzzing") or is_negative(case, ParameterLocation.PATH):
        return
    if case.method == "PUT" and name not in NEED_WHAT_THEY_PUT:
        return
    if phase == "fuzzing" and next(turns) % 2:
        return
    situate_secret(case, name)
    situate_position(case, name)
    path = case.path_parameters or {}
    if "taskId" in path or "taskGroupId" in path:
        task = new_task()
        path.update({known: task for known in ("taskId", "taskGroupId") if known in path})
        if "runId" in path:
            path["runId"] = 0
        if ("runId" in path and name != "claimTask") or "name" in path:
            claim(task)
        if name == "claimTask" and not is_negative(case, ParameterLocation.BODY):
            # Others may be quarantined.
            case.body = {"workerGroup": "rack-1", "workerId": "made-" + task}
        if "name" in path:
            situate_artifact(case, name, task)
        if name == "getLiveLog":
            path_of_log = f"/api/tenure/v1/tasks/{task}/runs/0/live-log?offset=0"
            session.put(ROOT_URL + path_of_log, data=b"hello", auth=ACCOUNT, timeout=30).raise_for_status()
        if name == "getCheckpoint":
            claim(task)
            call("PUT", f"/api/tenure/v1/tasks/{task}/runs/0/checkpoint", {"checkpoint": 1})
        if name == "putCheckpoint" and not is_negative(case, ParameterLocation.BODY):
            # A name given by another request is unusable.
            case.body = {"checkpoint": 1}
        if name == "getTaskCommand":
            call("PUT", f"/api/tenure/v1/tasks/{task}/command", {"command": "run"})
        if name == "getTaskResult":
            claim(task)
            call("POST", f"/api/queue/v1/task/{task}/runs/0/completed", {"result": 1})
        if name == "cancelTaskGroup":
            call("POST", f"/api/queue/v1/task-group/{task}/seal")
    elif "name" in path and name != "finishUpload":
        path["name"] = "made/" + new_task_id()
        new_object(path["name"], new_task_id())
    if "workerPoolId" in path and "workerId" in path:
        path.update(new_worker()[0])
    if name in READ_A_QUEUE:
        new_task()
        path.update({known: QUEUE[known] for known in QUEUE if known in path})
    if name == "replaceScheduler":
        queue = "made/assigns"
        call("PUT", f"/api/tenure/v1/queues/{quoted(queue)}/policy", {"dispatch": "assign"})
        provisioner, worker_type = queue.split("/")
        values = {"taskQueueId": queue, "provisionerId": provisioner, "workerType": worker_type}
        path.update({known: value for known, value in values.items() if known in path})
    if "sessionId" in path:
        path["sessionId"] = new_session()
    if "clientId" in path:
        path["clientId"] = "made-" + new_task_id()
        call("PUT", "/api/auth/v1/clients/" + path["clientId"], {"description": "", "expires": date_in(days=1)})
    if "roleId" in path:
        path["roleId"] = "made-" + new_task_id()
        call("PUT", "/api/auth/v1/roles/" + path["roleId"], {"description": "", "scopes": []})


@schemathesis.hook
def before_call(context, case, kwargs):
    name = name_of(context.operation)
    situate(case, name)
    protect(case, name)
    shorten(case, name)
    complete(case, name)


def remember(value):
    """Ids of tasks in an answer."""
    if isinstance(value, dict):
        status = value.get("status")
        if isinstance(status, dict) and isinstance(status.get("taskId"), str):
            tasks.append(status["taskId"])
        for entry in value.get("tasks") or []:
            remember(entry)


@schemathesis.hook
def after_call(context, case, response):
    name = name_of(context.operation)
    if response.request.method == case.operation.method.upper():
        tally[name][response.status_code] += 1
        if response.status_code == 200:
            learn(name, response)


def learn(name, response):
    """Parts of an answer that other requests need."""
    global ahead, is_queue_changed
    if name in ("createTask", "createTasks"):
        remember(response.json())
    elif name in ("putQueuePolicy", "pauseQueue"):
        is_queue_changed = True
    elif name in ("getClock", "advanceClock"):
        now = datetime.datetime.fromisoformat(response.json()["now"])
        ahead = now - datetime.datetime.now(datetime.timezone.utc)


@atexit.register
def write_tally():
    with open(TALLY, "w") as file:
        json.dump({name: dict(sorted(counts.items())) for name, counts in sorted(tally.items())}, file)


# Signed URLs -----------------------------------------------------------------------------------------------------------

SIGNATURE = ("sv", "st", "se", "sp", "spr", "sig", "Credential", "expires", "signature")
# The rest of a stored artifact's URL is its name.
STORED = "/artifacts/"


@schemathesis.auth(refresh_interval=None)
class Credentials:
    """HTTP Basic, or a signed URL: a fresh one for each request, since the clock is moved, and with a message that is
    there where one is named."""

    def get(self, case, context):
        schemes = {scheme for one in case.operation.definition.raw.get("security", []) for scheme in one}
        if "basic" in schemes:
            return {"basic": requests.auth._basic_auth_str(*ACCOUNT)}
        if "artifactUrl" in schemes:
            return self.artifact_url(case)
        return self.signed_url(case) if "signedUrl" in schemes else None

    def artifact_url(self, case):
        """Of an artifact with stored bytes, to upload or download them."""
        task = new_task()
        claim(task)
        name, url = new_stored_artifact(task)
        if case.method != "PUT":
            path = f"/api/queue/v1/task/{task}/runs/0/artifacts/{quoted(name)}"
            url = session.get(ROOT_URL + path, auth=ACCOUNT, timeout=30, allow_redirects=False).headers["Location"]
        parts = urllib.parse.urlsplit(url)
        signed = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
        return {"query": signed, "path": {"artifact": urllib.parse.unquote(parts.path.split(STORED, 1)[1])}}

    def signed_url(self, case):
        let_queue_run()
        urls = call("GET", "/api/queue/v1/poll-task-url/acme/linux").json()["queues"]
        poll = urllib.parse.urlsplit(urls[-1]["signedPollUrl"])
        signed = {name: values[0] for name, values in urllib.parse.parse_qs(poll.query).items() if name in SIGNATURE}
        found = {"query": signed, "path": {"queue": poll.path.split("/")[-2]}}
        if "{messageId}" in case.operation.path:
            message = self.new_message(urls[-1]["signedPollUrl"])
            found["path"]["messageId"] = message["MessageId"]
            found["query"]["popreceipt"] = message["PopReceipt"]
            found["text"] = message["MessageText"]
        return found

    def new_message(self, url):
        """Of a task created for it; earlier tasks are removed first."""
        new_task()
        answer = session.get(url + "&numofmessages=1", timeout=30)
        answer.raise_for_status()
        return dict(re.findall("<(MessageId|PopReceipt|MessageText)>([^<]*)</", answer.text))

    def set(self, case, found, context):
        if "basic" in found:
            case.headers["Authorization"] = found["basic"]
            return
        if not is_negative(case, ParameterLocation.PATH):
            case.path_parameters.update(found["path"])
        if not is_negative(case, ParameterLocation.QUERY):
            for name in SIGNATURE:
                case.query.pop(name, None)
            case.query.update(found["query"])
        if "artifact" in found["path"] and case.method == "PUT":
            case.headers["Content-Type"] = BYTES
        body = case.body
        if isinstance(body, dict) and "MessageText" in body and not is_negative(case, ParameterLocation.BODY):
            if next(turns) % RAW_EVERY:
                case.body = {"MessageText": found["text"]}


# Answers beyond the document --------------------------------------------------------------------------------

# A message's text cannot change, and a new receipt voids the old one (contract, section 2.3: both are 400).
MESSAGE_RULES = ("InvalidXmlNodeValue", "PopReceiptMismatch")
# Property that Schemathesis adds to a closed object, in lower case.
UNKNOWN_PROPERTY = "x-schemathesis-unknown-property"
NOT_HEADERS = (ParameterLocation.BODY, ParameterLocation.COOKIE, ParameterLocation.PATH, ParameterLocation.QUERY)
NOT_BODY = (ParameterLocation.HEADER, ParameterLocation.COOKIE, ParameterLocation.PATH, ParameterLocation.QUERY)
# The only field of a report that is read.
RESULT = b'"result"'


def sent(response):
    """The body of the request."""
    body = response.request.body or b""
    return body.encode() if isinstance(body, str) else body



def excuse(failure, case, response):
    """Reason to ignore a failure; None if it is real."""
    if isinstance(failure, UndefinedStatusCode) and response.status_code == 404:
        queue = str((case.path_parameters or {}).get("taskQueueId", "/"))
        if name_of(case.operation) == "taskQueueCounts" and "/" not in urllib.parse.unquote(queue):
            return "slashes may stand as they are: /task-queues/a/counts is getTaskQueue of the queue a/counts"
    if isinstance(failure, AcceptedNegativeData):
        added = UNKNOWN_PROPERTY in {name.lower() for name in case.headers or ()}
        if added and not any(is_negative(case, location) for location in NOT_HEADERS):
            return "RFC 9110, section 5.1: a field of the header that the recipient does not know is ignored"
        reports = name_of(case.operation) in ("reportCompleted", "reportFailed")
        if reports and not any(is_negative(case, location) for location in NOT_BODY) and RESULT not in sent(response):
            return "in Taskcluster these reports have no input: a body that has no result in it is ignored, whatever it is"
        if name_of(case.operation) == "updateMessage" and isinstance(case.body, list) and not response.request.body:
            return "a list that is nothing as XML is an empty body, and an update without a text leaves the text as it is"
    if not isinstance(failure, RejectedPositiveData):
        return None
    text = response.text or ""
    try:
        code = json.loads(text).get("code")
    except (ValueError, AttributeError):
        code = None
    if response.status_code == 400 and code == "InputError":
        return (
            "contract, section 0.1: InputError, status 400, is for rules that a schema cannot say, such as dates that are "
            "too far from now; the check knows only of schemas. Where a schema could say it, the code is another one"
        )
    run = str((case.path_parameters or {}).get("runId", "0"))
    if response.status_code == 400 and case.meta and case.meta.phase.name.value == "stateful" and not RUN_ID.fullmatch(run):
        return "a link that Schemathesis infers puts a taskId into the place of a runId, unchecked: no valid data"
    if response.status_code == 410 and code in ("ResourceExpired", "SessionEnded"):
        return "contract, section 0.1: what was there and is gone is answered with 410, which the check does not know"
    if response.status_code == 416:
        return "RFC 9110, section 15.5.17: how many bytes there are to ask for, no schema can say"
    if response.status_code == 424:
        return "contract, section 6.2: an artifact that a worker could not make is answered with 424 and the reason"
    if response.status_code == 413:
        return "contract, section 0: a body has 10 MB at most, which no schema of its parts can say"
    if response.status_code == 400 and any(f"<Code>{rule}</Code>" in text for rule in MESSAGE_RULES):
        return "contract, section 2.3: the poll API answers 400 where the message does not allow it"
    return None


@schemathesis.hook
def filter_failure(context, failure: Failure, case, response):
    return excuse(failure, case, response) is None
