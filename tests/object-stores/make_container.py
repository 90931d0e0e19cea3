"""Makes a container in an Azure Blob Storage: address, account, key, and the container's name."""
import base64, email.utils, hashlib, hmac, sys, urllib.request

address, account, key, container = sys.argv[1:]
headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
# Method, eleven headers that are not sent, Azure's headers, and the resource.
text = "PUT" + "\n" * 12 + named + f"/{account}/{account}/{container}\nrestype:container"
mac = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()
request = urllib.request.Request(
    f"{address}/{account}/{container}?restype=container",
    method="PUT",
    headers={**headers, "Authorization": f"SharedKey {account}:{mac}", "Content-Length": "0"},
)
with urllib.request.urlopen(request) as answer:
    assert answer.status == 201, answer.status
