"""The table of cases, as ../README.md describes it: placeholders, expectations, steps. Knows no client library."""

import datetime
import re
import secrets
import time

import requests

PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
FROM_NOW = re.compile(r"now([+-]\d+)")
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
EVENTUALLY_SECONDS = 20
PAUSE_SECONDS = 0.1
SIGNED_URL_SECONDS = 3600
HTTP_TIMEOUT_SECONDS = 60


class Mismatch(Exception):
    """An answer, or an error, is not what the table expects."""


def inside(value, path):
    """What is found in a value under a path like `tasks.0.credentials`."""
    for key in filter(None, path.split(".")):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def check_fits(wanted, got, where="the answer"):
    if wanted == "$any":
        if got is None:
            raise Mismatch(f"{where} is missing")
    elif wanted == "$date":
        if not (isinstance(got, str) and DATE.fullmatch(got)):
            raise Mismatch(f"{where} is no date: {got!r}")
    elif isinstance(wanted, dict) and "$length" in wanted:
        if not isinstance(got, list) or len(got) != wanted["$length"]:
            raise Mismatch(f"{where} has not {wanted['$length']} elements: {got!r}")
    elif isinstance(wanted, dict) and "$contains" in wanted:
        for element in wanted["$contains"]:
            if not isinstance(got, list) or not any(fits(element, candidate) for candidate in got):
                raise Mismatch(f"{where} has nothing like {element!r}: {got!r}")
    elif isinstance(wanted, dict):
        if not isinstance(got, dict):
            raise Mismatch(f"{where} is no object: {got!r}")
        for key, value in wanted.items():
            if value == "$absent":
                if key in got:
                    raise Mismatch(f"{where} has {key}: {got[key]!r}")
            else:
                check_fits(value, got.get(key), f"{where}.{key}")
    elif isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            raise Mismatch(f"{where} has not {len(wanted)} elements: {got!r}")
        for index, (one, other) in enumerate(zip(wanted, got)):
            check_fits(one, other, f"{where}.{index}")
    elif wanted != got or isinstance(wanted, bool) != isinstance(got, bool):
        raise Mismatch(f"{where} is {got!r}, not {wanted!r}")


def fits(wanted, got):
    try:
        check_fits(wanted, got)
    except Mismatch:
        return False
    return True


class Case:
    """One case with its values. `client` is what a driver knows about its library; see driver.py."""

    def __init__(self, case, templates, client, root_url, root):
        self.case, self.templates, self.client = case, templates, client
        self.began = datetime.datetime.now(datetime.timezone.utc)
        unique = secrets.token_hex(6)
        self.values = {
            **case.get("values", {}),
            "root": root,
            "rootUrl": root_url,
            "unique": unique,
            "provisionerId": "interop",
            "workerType": "q" + unique,
            "queueId": "interop/q" + unique,
            **{name: client.slugid() for name in case.get("slugids", [])},
        }

    def run(self):
        for index, step in enumerate(self.case["steps"]):
            if self.client.name in step.get("lacking", []):
                continue
            for _ in range(step.get("times", 1)):
                try:
                    self._perform(step)
                except Exception as error:
                    kind = next(key for key in KINDS if key in step)
                    what = step[kind] if isinstance(step[kind], str) else kind
                    raise Mismatch(f"step {index + 1} ({what}): {type(error).__name__}: {error}") from error

    def _perform(self, step):
        deadline = time.monotonic() + EVENTUALLY_SECONDS
        while True:
            self.values["fresh"] = self.client.slugid()
            filled = self._fill(step)
            try:
                answer = self._answer(filled)
                break
            except Mismatch:
                if not step.get("eventually") or time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)
        for name, path in step.get("save", {}).items():
            self.values[name] = inside(answer, path)

    def _answer(self, step):
        """Does what the step says, and checks what comes of it."""
        kind = next(key for key in KINDS if key in step)
        wanted = step.get("error")
        try:
            answer = KINDS[kind](self.client, step, self._credentials(step))
        except self.client.errors as error:
            if wanted is None:
                raise Mismatch(f"{type(error).__name__}: {error}") from error
            check_fits({key: wanted[key] for key in wanted if key != "message"}, self.client.described(error), "the error")
            if wanted.get("message", "") not in str(error):
                raise Mismatch(f"the error does not say {wanted['message']!r}: {error}") from error
            return None
        if wanted is not None:
            raise Mismatch(f"no error, but {answer!r}")
        if "expect" in step:
            check_fits(step["expect"], answer)
        return answer

    def _credentials(self, step):
        name = step.get("as", "anonymous")
        if name == "anonymous":
            return None
        known = self._fill(self.values[name])
        return {key: known[key] for key in ("clientId", "accessToken", "certificate") if key in known}

    def _fill(self, value):
        if isinstance(value, str):
            whole = PLACEHOLDER.fullmatch(value)
            return self._value(whole[1]) if whole else PLACEHOLDER.sub(lambda found: str(self._value(found[1])), value)
        if isinstance(value, list):
            return [self._fill(element) for element in value]
        if not isinstance(value, dict):
            return value
        if "$template" in value:
            changes = {key: element for key, element in value.items() if key != "$template"}
            return self._fill({**self.templates[value["$template"]], **changes})
        if "$times" in value:
            return [value["each"].replace("${number}", str(number)) for number in range(1, value["$times"] + 1)]
        return {self._fill(key): self._fill(element) for key, element in value.items()}

    def _value(self, name):
        from_now = FROM_NOW.fullmatch(name)
        if from_now:
            moment = self.began + datetime.timedelta(seconds=int(from_now[1]))
            return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"
        name, _, path = name.partition(".")
        return inside(self.values[name], path)


def call(client, step, credentials):
    options = {"authorizedScopes": step["authorizedScopes"]} if "authorizedScopes" in step else {}
    service = client.service(step.get("service", "queue"), credentials, options)
    return client.call(service, step["call"], step.get("args", []), step.get("payload"), step.get("query", {}))


def paginate(client, step, credentials):
    service = client.service(step.get("service", "queue"), credentials, {})
    pages = client.pages(service, step["paginate"], step.get("args", []), step.get("payload"), step["query"])
    found = [inside(element, step["unique"]) for page in pages for element in page[step["items"]]]
    return {"pages": len(pages), "count": len(found), "distinct": len(set(found))}


def signed_url(client, step, credentials):
    service = client.service(step.get("service", "queue"), credentials, {})
    lasts = step.get("seconds", SIGNED_URL_SECONDS)
    return client.signed_url(service, step["signedUrl"], step.get("args", []), step.get("query", {}), lasts)


def temporary_credentials(client, step, credentials):
    wanted = step["temporaryCredentials"]
    return client.temporary_credentials(credentials, wanted["scopes"], wanted.get("clientId"))


def download_artifact(client, step, credentials):
    queue = client.service("queue", credentials, {})
    content, content_type = client.download_artifact(queue, **step["downloadArtifact"])
    content = bytes(content)
    return {"text": content.decode(), "contentType": content_type, "size": len(content)}


def upload_object(client, step, credentials):
    wanted = dict(step["uploadObject"])
    content = (wanted.pop("text") * wanted.pop("times", 1)).encode()
    client.upload_object(client.service("object", credentials, {}), content, **wanted)


def http(_client, step, _credentials):
    wanted = step["http"]
    body = wanted.get("body", "").encode()
    request = requests.Request(wanted["method"], wanted["url"], headers=wanted.get("headers", {}), data=body).prepare()
    # A prepared URL may be escaped again; this one is sent unchanged.
    request.url = wanted["url"]
    with requests.Session() as session:
        response = session.send(request, allow_redirects=False, timeout=HTTP_TIMEOUT_SECONDS)
    response.encoding = "utf-8"
    answer = {
        "status": response.status_code,
        "headers": {name.lower(): value for name, value in response.headers.items()},
        "text": response.text,
    }
    if answer["headers"].get("content-type", "").startswith("application/json"):
        answer["json"] = response.json()
    return answer


KINDS = {
    "call": call,
    "paginate": paginate,
    "signedUrl": signed_url,
    "temporaryCredentials": temporary_credentials,
    "uploadObject": upload_object,
    "downloadArtifact": download_artifact,
    "http": http,
}
