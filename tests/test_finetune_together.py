"""Fine-tuning at Together: the file is checked, the request is exact, and nothing is sent by accident."""

import importlib.util
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

JOB = Path(__file__).parent.parent / "jobs" / "finetune_together.py"
SFT = {
    "messages": [
        {"role": "user", "content": "Fix it.", "weight": 0},
        {"role": "assistant", "content": '{"type": "final"}', "weight": 1},
    ]
}
DPO = {
    "input": {"messages": [{"role": "user", "content": "Fix it."}]},
    "preferred_output": [{"role": "assistant", "content": "done"}],
    "non_preferred_output": [{"role": "assistant", "content": "no"}],
}


UPLOADED = {
    "id": "file-1",
    "object": "file",
    "purpose": "fine-tune",
    "bytes": 1,
    "created_at": 1,
    "filename": "rows.jsonl",
    "FileType": "jsonl",
    "file_type": "jsonl",
    "processing_status": "COMPLETED",
}


SIZES = {"max_batch_size": 8, "max_batch_size_dpo": 8, "min_batch_size": 8}
LIMITS = {
    "model_name": "m",
    "lora_training": {**SIZES, "max_rank": 64, "default_rank": 8, "target_modules": ["q_proj"]},
    "full_training": SIZES,
    "max_learning_rate": 1,
    "min_learning_rate": 0,
    **dict.fromkeys(("max_num_epochs", "max_num_evals", "max_num_checkpoints"), 9),
    **dict.fromkeys(("max_seq_length_sft", "max_seq_length_dpo", "min_max_seq_length"), 1024),
    **dict.fromkeys(("supports_vision", "supports_tools", "supports_reasoning"), False),
    "default_gradient_accumulation_steps": 1,
    "merge_output_lora": True,
    "supports_full_training": True,
}


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("finetune_together", JOB)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lines(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def asked(path: Path, *more: str) -> list[str]:
    return ["--dataset", str(path), "--model", "Qwen/Qwen2.5-7B-Instruct", "--suffix", "a", *more]


def test_the_dry_run_prints_the_request_as_it_would_be_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script().main(asked(lines(tmp_path, SFT, SFT), "--lora", "--dry-run")) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["upload"]["lines"] == 2
    assert output["price"] is None
    assert output["create"] == {
        "training_file": "ID_OF_THE_UPLOAD",
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "n_epochs": 1,
        "batch_size": "max",
        "learning_rate": 1e-5,
        "lora": True,
        "training_method": "sft",
        "suffix": "a",
        "train_on_inputs": False,
    }
    more = ("--method", "dpo", "--epochs", "2", "--batch-size", "8", "--no-lora", "--dry-run")
    assert script().main(asked(lines(tmp_path, DPO), *more)) == 0
    output = json.loads(capsys.readouterr().out)["create"]
    assert (output["training_method"], output["dpo_beta"], output["rpo_alpha"]) == ("dpo", 0.1, 0.2)
    assert (output["n_epochs"], output["batch_size"], output["lora"]) == (2, 8, False)
    assert "train_on_inputs" not in output


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ((SFT, "{\n", DPO), (), "2 of 3 lines of .* for sft .*line 2: no_json, line 3: Object contains unknown field"),
        ((SFT,), ("--method", "dpo"), "1 of 1 lines .* or give the other --method"),
        ((), (), "holds no lines"),
        (
            ({"messages": [{"role": "user", "content": f"token ghp_{'a1B2' * 9}"}, SFT["messages"][1]]},),
            (),
            "line 1: secret",
        ),
    ],
)
def test_a_file_that_cannot_be_sent_is_one_sentence(
    rows: Any, more: Any, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script().main(asked(lines(tmp_path, *rows), *more, "--dry-run")) == 2
    (output,) = capsys.readouterr().err.strip().splitlines()
    assert output.startswith("finetune_together: ")
    assert re.search(words, output), output


class Server(BaseHTTPRequestHandler):
    """As much of Together as a job needs; the job ends at the second look."""

    seen: ClassVar[list[tuple[str, str, Any]]] = []
    price = 1.5

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(("POST", self.path, body))
        if self.path == "/v1/files":
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/put")
            self.send_header("X-Together-File-Id", "file-1")
            self.end_headers()
        elif self.path.endswith("estimate-price"):
            self._json(
                {
                    "estimation_available": True,
                    "allowed_to_proceed": True,
                    "estimated_total_price": self.price,
                    "user_limit": 100.0,
                    "estimated_train_token_count": 10,
                    "estimated_eval_token_count": 0,
                }
            )
        elif self.path == "/v1/fine-tunes":
            self._json({"id": "ft-1", "status": "pending", "user_id": "u"})
        else:
            self._json(UPLOADED)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(("PUT", self.path, body))
        self._json({})

    def do_GET(self) -> None:
        self.seen.append(("GET", self.path, b""))
        if "limits" in self.path:
            self._json(LIMITS)
        elif "fine-tunes" in self.path:
            looks = sum("fine-tunes/ft-1" in path for _, path, _ in self.seen)
            status = "running" if looks == 1 else "completed"
            self._json({"id": "ft-1", "status": status, "user_id": "u"})
        else:
            self._json(UPLOADED)

    def _json(self, content: Any) -> None:
        text = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    pytest.importorskip("together", reason="the client is an extra")

    Server.seen.clear()
    running = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    monkeypatch.setenv("TOGETHER_BASE_URL", f"http://127.0.0.1:{running.server_port}")
    monkeypatch.setenv("TOGETHER_API_KEY", "key")
    yield Server
    running.shutdown()


def test_a_job_is_priced_started_and_watched_to_its_end(
    server: type[Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from together import Together

    job, client = script(), Together()
    argv = asked(lines(tmp_path, DPO), "--method", "dpo", "--max-cost", "2")
    job_id = job.start(client, job.parser().parse_args(argv))
    assert job.watch(client, job_id, seconds=0) == "completed"
    output = capsys.readouterr().out.splitlines()
    assert output == [
        f"[finetune] {tmp_path / 'rows.jsonl'} is sent to 127.0.0.1",
        "[finetune] price: 1.50 dollars by Together's count",
        "[finetune] job ft-1 is pending",
        "[finetune] job ft-1 is running",
        "[finetune] job ft-1 is completed",
    ]
    (sent,) = [json.loads(body) for kind, path_, body in server.seen if path_ == "/v1/fine-tunes"]
    assert sent["training_file"] == "file-1"
    assert sent["training_method"]["dpo_beta"] == 0.1


def test_a_job_above_the_cost_is_not_started(
    server: type[Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script().main(asked(lines(tmp_path, SFT), "--max-cost", "1")) == 2
    assert "The price is 1.50 dollars and --max-cost is 1.00" in capsys.readouterr().err
    assert not [path for _, path, _ in server.seen if path == "/v1/fine-tunes"]


def test_without_the_client_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "together", None)
    assert script().main(asked(lines(tmp_path, SFT))) == 2
    assert "A job without --dry-run needs the extra `together`: run `pip install" in capsys.readouterr().err
