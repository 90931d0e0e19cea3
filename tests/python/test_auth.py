"""The official client's Auth service: every method that is served, and signed URLs of the Queue as well."""

import base64
import datetime
import secrets

import mohawk
import pytest
import requests
import taskcluster
from taskcluster.exceptions import TaskclusterAuthFailure, TaskclusterRestFailure

from tasks import create

HOUR = datetime.timedelta(hours=1)
TESTER = {"clientId": "tester", "accessToken": "no-secret"}


def in_an_hour():
    return (datetime.datetime.now(datetime.timezone.utc) + HOUR).isoformat()


def auth_as(server, credentials, **options):
    credentials = {} if credentials is None else {"credentials": dict(credentials)}
    return taskcluster.Auth({"rootUrl": server.root_url, "maxRetries": 0, **credentials, **options})


@pytest.fixture
def auth(server):
    return auth_as(server, server.root)


@pytest.fixture
def name():
    """A prefix of ids that no other test uses."""
    return "python/" + secrets.token_hex(6)


def a_client(*scopes):
    return {"description": "made by a test", "expires": in_an_hour(), "scopes": list(scopes)}


def a_role(*scopes):
    return {"description": "made by a test", "scopes": list(scopes)}


def credentials_of(client):
    return {key: client[key] for key in ("clientId", "accessToken")}


def assert_refused(status, code, call, *args, **kwargs):
    with pytest.raises((TaskclusterRestFailure, TaskclusterAuthFailure)) as refusal:
        call(*args, **kwargs)
    assert (refusal.value.status_code, refusal.value.body["code"]) == (status, code)
    return refusal.value.body["message"]


def test_the_service_answers_that_it_is_there(server, auth):
    assert auth.ping()["alive"] is True
    assert auth.version()["source"] == "tenure"
    auth.heartbeat()
    auth.lbheartbeat()
    assert auth_as(server, None).ping()["alive"] is True


def test_a_client_from_its_creation_to_its_deletion(server, auth, name):
    definition = a_client("queue:claimed-count:*")
    made = auth.createClient(name, definition)
    assert made["clientId"] == name
    assert sorted(made["expandedScopes"]) == [f"assume:client-id:{name}", "queue:claimed-count:*"]
    # The client retries a request whose answer it lost.
    assert auth.createClient(name, definition)["accessToken"] == made["accessToken"]
    assert_refused(409, "RequestConflict", auth.createClient, name, a_client("other"))

    assert "accessToken" not in auth.client(name)
    mine = auth_as(server, credentials_of(made))
    assert "queue:claimed-count:*" in mine.currentScopes()["scopes"]
    changed = auth.updateClient(name, a_client("queue:claimed-count:a/*"))
    assert changed["scopes"] == ["queue:claimed-count:a/*"]
    assert "queue:claimed-count:*" not in mine.currentScopes()["scopes"]

    reset = auth.resetAccessToken(name)
    assert_refused(401, "AuthenticationFailed", mine.currentScopes)
    mine = auth_as(server, credentials_of(reset))
    assert auth.disableClient(name)["disabled"] is True
    assert_refused(401, "AuthenticationFailed", mine.currentScopes)
    assert auth.enableClient(name)["disabled"] is False
    mine.currentScopes()
    auth.deleteClient(name)
    auth.deleteClient(name)
    assert_refused(401, "AuthenticationFailed", mine.currentScopes)
    assert_refused(404, "ResourceNotFound", auth.client, name)


def test_temporary_credentials_end_with_their_issuer(server, auth, name):
    made = auth.createClient(name, a_client("queue:claimed-count:*"))
    now = datetime.datetime.now(datetime.timezone.utc)
    lent = taskcluster.createTemporaryCredentials(
        name, made["accessToken"], now, now + HOUR, ["queue:claimed-count:a/*"]
    )
    lent = auth_as(server, {key: taskcluster.utils.toStr(value) for key, value in lent.items()})
    assert "queue:claimed-count:a/*" in lent.currentScopes()["scopes"]
    auth.disableClient(name)
    assert_refused(401, "AuthenticationFailed", lent.currentScopes)


def test_a_role_from_its_creation_to_its_deletion(server, auth, name):
    role_id = f"{name}:*"
    made = auth.createRole(role_id, a_role("queue:create-task:<..>:*"))
    assert made["roleId"] == role_id
    assert auth.createRole(role_id, a_role("queue:create-task:<..>:*")) == made
    assert_refused(409, "RequestConflict", auth.createRole, role_id, a_role("other"))
    assert auth.role(role_id) == made
    held = auth_as(server, credentials_of(auth.createClient(name, a_client(f"assume:{name}:red"))))
    assert "queue:create-task:red:*" in held.currentScopes()["scopes"]
    assert auth.updateRole(role_id, a_role("paint:<..>"))["scopes"] == ["paint:<..>"]
    scopes = held.currentScopes()["scopes"]
    assert "paint:red" in scopes and "queue:create-task:red:*" not in scopes
    expanded = auth.expandScopes({"scopes": [f"assume:{name}:blue"]})["scopes"]
    assert sorted(expanded) == [f"assume:{name}:blue", "paint:blue"]
    auth.deleteRole(role_id)
    auth.deleteRole(role_id)
    assert "paint:red" not in held.currentScopes()["scopes"]
    assert_refused(404, "ResourceNotFound", auth.role, role_id)


def test_roles_in_a_circle_are_refused(auth, name):
    auth.createRole(f"{name}/a", a_role(f"assume:{name}/b"))
    message = assert_refused(400, "InputError", auth.createRole, f"{name}/b", a_role(f"assume:{name}/a"))
    assert f"{name}/a" in message


def pages(method, **query):
    """All pages of a list, as the client reads them."""
    found = []
    method(query={"limit": "2", **query}, paginationHandler=found.append)
    return found


def test_lists_come_in_pages(auth, name):
    ids = [f"{name}/{number}" for number in range(5)]
    for one in ids:
        auth.createClient(one, a_client())
        auth.createRole(one, a_role())
    listed = pages(auth.listClients, prefix=f"{name}/")
    assert [len(page["clients"]) for page in listed] == [2, 2, 1]
    assert [client["clientId"] for page in listed for client in page["clients"]] == ids
    of_ours = [one for page in pages(auth.listRoleIds) for one in page["roleIds"] if one.startswith(name)]
    assert of_ours == ids
    of_ours = [role["roleId"] for page in pages(auth.listRoles2) for role in page["roles"]]
    assert [one for one in of_ours if one.startswith(name)] == ids
    assert set(ids) <= {role["roleId"] for role in auth.listRoles()}


def test_no_client_grants_what_it_does_not_have(server, auth, name):
    scopes = [f"auth:create-client:{name}/*", f"auth:create-role:{name}/*", f"auth:update-client:{name}/*", "a:*"]
    small = auth_as(server, credentials_of(auth.createClient(name, a_client(*scopes))))
    small.createClient(f"{name}/one", a_client("a:b"))
    for too_much in ("*", "b", "a*", "assume:somebody"):
        args = (f"{name}/two", a_client(too_much))
        assert too_much in assert_refused(403, "InsufficientScopes", small.createClient, *args)
        assert_refused(403, "InsufficientScopes", small.updateClient, f"{name}/one", a_client("a:b", too_much))
        assert_refused(403, "InsufficientScopes", small.createRole, f"{name}/two", a_role(too_much))
    assert_refused(403, "InsufficientScopes", small.createRole, f"{name}/two*", a_role("<..>"))
    assert_refused(403, "InsufficientScopes", small.resetAccessToken, f"{name}/one")
    assert_refused(403, "InsufficientScopes", small.listClients)


def test_a_service_can_ask_who_sent_it_a_request(server, auth, name):
    made = auth.createClient(name, a_client("a"))
    key = {"id": name, "key": made["accessToken"], "algorithm": "sha256"}
    sender = mohawk.Sender(key, "https://elsewhere.example/x?y=1", "POST", content="{}", content_type="text/plain")
    seen = {"method": "post", "resource": "/x?y=1", "host": "elsewhere.example", "port": 443}
    answer = auth.authenticateHawk({**seen, "authorization": sender.request_header, "sourceIp": "10.0.0.1"})
    assert (answer["status"], answer["scheme"], answer["clientId"]) == ("auth-success", "hawk", name)
    assert "a" in answer["scopes"] and answer["expires"] == made["expires"] and len(answer["hash"]) == 44
    wrong = sender.request_header.replace(name, "nobody")
    assert auth.authenticateHawk({**seen, "authorization": wrong})["status"] == "auth-failed"
    assert auth.authenticateHawk(seen)["status"] == "no-auth"
    # A signed URL that was sent to another service.
    elsewhere = taskcluster.Queue({"rootUrl": "https://elsewhere.example", "credentials": credentials_of(made)})
    url = elsewhere.buildSignedUrl("status", "CJmZxuGTQSGiSijhmS2LGg", expiration=60)
    seen = {**seen, "method": "get", "resource": url.removeprefix("https://elsewhere.example")}
    assert auth.authenticateHawk(seen)["status"] == "auth-success"


def test_clients_can_try_out_how_they_sign(server):
    tester = auth_as(server, TESTER)
    wanted = {"clientScopes": ["test:*"], "requiredScopes": ["test:a"]}
    answer = tester.testAuthenticate(wanted)
    assert answer == {"clientId": "tester", "scopes": ["assume:anonymous", "test:*"]}
    narrow = auth_as(server, TESTER, authorizedScopes=["test:a"])
    assert narrow.testAuthenticate(wanted)["scopes"] == ["assume:anonymous", "test:a"]
    assert_refused(403, "InsufficientScopes", tester.testAuthenticate, {**wanted, "requiredScopes": ["b"]})
    assert tester.testAuthenticateGet()["clientId"] == "tester"
    wrong = auth_as(server, {**TESTER, "accessToken": "secret"})
    assert_refused(401, "AuthenticationFailed", wrong.testAuthenticateGet)


def get(url):
    response = requests.get(url, timeout=30)
    return response.status_code, response.json()


def test_signed_urls_of_the_tester(server):
    tester = auth_as(server, TESTER)
    status, answer = get(tester.buildSignedUrl("testAuthenticateGet"))
    assert (status, answer["clientId"]) == (200, "tester")
    narrow = auth_as(server, TESTER, authorizedScopes=["test:authenticate-get", "test:foo"])
    status, answer = get(narrow.buildSignedUrl("testAuthenticateGet"))
    assert (status, answer["scopes"]) == (200, ["assume:anonymous", "test:authenticate-get", "test:foo"])
    too_narrow = auth_as(server, TESTER, authorizedScopes=["test:foo"])
    assert get(too_narrow.buildSignedUrl("testAuthenticateGet"))[0] == 403
    now = datetime.datetime.now(datetime.timezone.utc)
    scopes = ["test:authenticate-get"]
    for name in (None, "test/named"):
        lent = taskcluster.createTemporaryCredentials("tester", "no-secret", now, now + HOUR, scopes, name=name)
        lent = auth_as(server, {key: taskcluster.utils.toStr(value) for key, value in lent.items()})
        status, answer = get(lent.buildSignedUrl("testAuthenticateGet"))
        # This name needs a scope that the tester lacks.
        assert status == (200 if name is None else 401), answer


def test_signed_urls_of_the_queue(server, queue, queue_id):
    task_id = create(queue, queue_id)
    for method, args in (
        ("task", (task_id,)),
        ("status", (task_id,)),
        ("pendingTasks", (queue_id,)),
        ("taskQueueCounts", (queue_id,)),
    ):
        url = queue.buildSignedUrl(method, *args)
        status, answer = get(url)
        assert status == 200, answer
        assert requests.head(url, timeout=30).status_code == 200
    url = queue.buildSignedUrl("taskQueueCounts", queue_id)
    assert get(url.replace("bewit=", "bewit=A"))[0] == 401
    assert get(queue.buildSignedUrl("taskQueueCounts", queue_id, expiration=-1))[0] == 401
    bewit = url.partition("bewit=")[2]
    reclaim = server.root_url + f"/api/queue/v1/task/{task_id}/runs/0/reclaim?bewit={bewit}"
    assert requests.post(reclaim, timeout=30).status_code == 401
    token = base64.b64encode(f"{server.root['clientId']}:{server.root['accessToken']}".encode()).decode()
    both = requests.get(url, headers={"Authorization": f"Basic {token}"}, timeout=30)
    assert (both.status_code, both.json()["code"]) == (401, "AuthenticationFailed")


def test_a_signed_list_may_have_a_query(auth, name):
    auth.createClient(f"{name}/one", a_client())
    url = auth.buildSignedUrl("listClients", query={"prefix": f"{name}/", "limit": "5"})
    status, answer = get(url)
    assert status == 200, answer
    assert [client["clientId"] for client in answer["clients"]] == [f"{name}/one"]
