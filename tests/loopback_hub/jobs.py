"""Routes for jobs: submit, look, follow the log, cancel."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.loopback_hub.call import Call, Refusal, route
from tests.loopback_hub.executor import Job, check

HARDWARE: list[dict[str, Any]] = [
    {
        "name": "cpu-basic",
        "prettyName": "CPU Basic",
        "cpu": "2 vCPU",
        "ram": "16 GB",
        "accelerator": None,
        "unitCostMicroUSD": 167,
        "unitCostUSD": 0.000167,
        "unitLabel": "minute",
    },
    {
        "name": "a10g-large",
        "prettyName": "Nvidia A10G - large",
        "cpu": "12 vCPU",
        "ram": "46 GB",
        "accelerator": {"type": "gpu", "model": "A10G", "quantity": "1", "vram": "24 GB", "manufacturer": "Nvidia"},
        "unitCostMicroUSD": 25000,
        "unitCostUSD": 0.025,
        "unitLabel": "minute",
    },
    {
        "name": "a10g-largex2",
        "prettyName": "2x Nvidia A10G - large",
        "cpu": "24 vCPU",
        "ram": "92 GB",
        "accelerator": {"type": "gpu", "model": "A10G", "quantity": "2", "vram": "48 GB", "manufacturer": "Nvidia"},
        "unitCostMicroUSD": 50000,
        "unitCostUSD": 0.05,
        "unitLabel": "minute",
    },
    {
        "name": "h200",
        "prettyName": "Nvidia H200",
        "cpu": "23 vCPU",
        "ram": "256 GB",
        "accelerator": {"type": "gpu", "model": "H200", "quantity": "1", "vram": "141 GB", "manufacturer": "Nvidia"},
        "unitCostMicroUSD": 83333,
        "unitCostUSD": 0.083333,
        "unitLabel": "minute",
    },
    {
        "name": "l40sx1",
        "prettyName": "1x Nvidia L40S",
        "cpu": "8 vCPU",
        "ram": "62 GB",
        "accelerator": {"type": "gpu", "model": "L40S", "quantity": "1", "vram": "48 GB", "manufacturer": "Nvidia"},
        "unitCostMicroUSD": 30000,
        "unitCostUSD": 0.03,
        "unitLabel": "minute",
    },
]


def namespace_of(call: Call) -> str:
    namespace = call.args["ns"]
    if not call.may_write(namespace, "job.write"):
        raise Refusal(403 if call.account else 401, f"You cannot run jobs as {namespace}")
    return namespace


def submit(call: Call) -> Response:
    namespace = namespace_of(call)
    spec = call.json()
    if not call.store.credit:
        raise Refusal(402, "Pre-paid credit balance is insufficient: add credits to use Jobs")
    problem = check(call.store, spec, [item["name"] for item in HARDWARE])
    if problem:
        raise Refusal(400, problem)
    job = Job(f"{len(call.store.jobs) + 1:024x}", namespace, spec)
    call.store.jobs[job.job_id] = job
    job.start(call.store, call.base)
    return JSONResponse(job.info())


def listed(call: Call) -> Response:
    """The jobs of a namespace, by `label` (key=value, all of them) and `stage` (any of them)."""
    namespace, query = namespace_of(call), call.request.query_params
    labels, stages = {*query.getlist("label")}, query.getlist("stage")
    found = [
        job.info()
        for job in call.store.jobs.values()
        if job.namespace == namespace
        and labels <= {f"{key}={value}" for key, value in (job.spec.get("labels") or {}).items()}
        and (not stages or job.stage in stages)
    ]
    return JSONResponse(found)


def find(call: Call) -> Job:
    namespace = namespace_of(call)
    job = call.store.jobs.get(call.args["job"])
    if job is None or job.namespace != namespace:
        raise Refusal(404, "Job not found")
    return job


def info(call: Call) -> Response:
    return JSONResponse(find(call).info())


def cancel(call: Call) -> Response:
    job = find(call)
    job.kill("CANCELED", None)
    return JSONResponse(job.info())


def logs(call: Call) -> Response:
    """Every line so far and all that follow, until the job has ended."""
    job = find(call)

    async def events() -> AsyncIterator[str]:
        sent = 0
        while True:
            ended = job.ended.is_set()
            for stamp, line in job.log[sent:]:
                sent += 1
                yield f"data: {json.dumps({'data': line, 'timestamp': stamp})}\n\n"
            if ended:
                return
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


ONE = r"/api/jobs/(?P<ns>[^/]+)/(?P<job>[^/]+)"
ROUTES = [
    route("GET", r"/api/jobs/hardware", lambda call: JSONResponse(HARDWARE)),
    route("POST", r"/api/jobs/(?P<ns>[^/]+)", submit),
    route("GET", r"/api/jobs/(?P<ns>[^/]+)", listed),
    route("GET", ONE, info),
    route("GET", rf"{ONE}/logs", logs),
    route("POST", rf"{ONE}/cancel", cancel),
]
