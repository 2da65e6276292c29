"""A Hugging Face Hub on 127.0.0.1 that the real, unmodified clients talk to through HF_ENDPOINT.

    storage.py     repositories, commits, trees, refs, buckets: no HTTP
    xet.py         the content-addressed store of large files
    card.py        the metadata of a README and the rules it must pass
    card_rules.py  the rules of single fields
    call.py        one request: who asks, for which repository; and what a refusal looks like
    repos.py       routes: accounts, repositories, info, refs
    files.py       routes: listing and reading files
    commits.py     routes: preupload, LFS, commit
    objects.py     routes of the storage host, where large files lie
    tokens.py      routes: access to the content-addressed store
    buckets.py     routes: buckets
    jobs.py        routes: jobs
    spaces.py      routes: Spaces; runs their apps, and the address of these
    executor.py    runs a job's command
    faults.py      what goes wrong on purpose
    server.py      the route table, the thread, and what a test holds: `LoopbackHub`
    client.py      runs Python against it in a process of its own
    forked.py      the process these are forked from, so that imports are paid for once
    hf.py          runs the `hf` command line against it
    fixture.py     the pytest fixture `loopback_hub`

The clients read HF_ENDPOINT and HF_HOME when they are imported, so they run as subprocesses with
the environment of `LoopbackHub.env`. Those that are forked were imported with the same address, and
with an HF_HOME relative to the folder that each of them runs in.
"""

from tests.loopback_hub.client import run_client, run_python
from tests.loopback_hub.hf import run_hf
from tests.loopback_hub.server import ORG, TOKEN, USER, LoopbackHub, loopback

__all__ = ["ORG", "TOKEN", "USER", "LoopbackHub", "loopback", "run_client", "run_hf", "run_python"]
