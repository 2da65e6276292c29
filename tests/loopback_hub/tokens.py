"""Routes that hand out tokens for the content-addressed store."""

import time

from starlette.responses import JSONResponse, Response

from tests.loopback_hub.call import REPO, Call, route


def token(call: Call) -> Response:
    write = call.args["right"] == "write"
    if "type" in call.args:
        call.repo(write=write)
    else:
        call.bucket(write=write)
    xet = call.store.xet
    place = xet.place(write=write)
    expires = int(time.time() + xet.expires_in)
    answer = {"casUrl": place, "accessToken": "xet", "exp": expires}
    headers = {"X-Xet-Cas-Url": place, "X-Xet-Access-Token": "xet", "X-Xet-Token-Expiration": str(expires)}
    return JSONResponse(answer, 200, headers)


TOKEN = r"/xet-(?P<right>read|write)-token"
ROUTES = [route("GET", rf"{REPO}{TOKEN}/.+", token), route("GET", rf"/api/buckets/(?P<id>[^/]+/[^/]+){TOKEN}", token)]
