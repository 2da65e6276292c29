"""Settings: precedence, refused values, and that keys are never shown."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import NO_KEY, PRESETS, Endpoint, Price, find_endpoint, load_settings
from tests.chat_server import ChatServer, busy, serve_chat

JOB = Path(__file__).parents[2] / "jobs" / "train_sdpo.py"
VARIABLES = [name for preset in PRESETS.values() for name in (*preset.key_variables, preset.url_variable) if name]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, without keys of whoever runs the tests."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in (*VARIABLES, "LLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def store_token(token: str) -> None:
    """Store a token as `hf auth login` does."""
    Path(constants.HF_TOKEN_PATH).write_text(token)


def test_the_environment_wins_then_dotenv_then_toml_then_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("chain.toml").write_text(
        '[duel]\nmodel = "toml"\nturns = 1\nseed = 1\nmax_tokens = 1\n[prices."a/b.c"]\ninput = 1\noutput = 2.5\n'
    )
    Path(".env").write_text("CHUTES_API_KEY=k\nCHAIN_DUEL__MODEL=dotenv\nCHAIN_DUEL__TURNS=2\nCHAIN_DUEL__SEED=2\n")
    monkeypatch.setenv("CHAIN_DUEL__MODEL", "environment")
    monkeypatch.setenv("CHAIN_DUEL__TURNS", "3")
    monkeypatch.setenv("CHAIN_JUDGE__MODELS", '["one", "two"]')
    settings = load_settings(duel={"model": "given", "seed": None})
    duel = settings.duel
    assert (duel.model, duel.turns, duel.seed, duel.max_tokens) == ("given", 3, 2, 1)
    assert duel.opponent == "king"
    assert settings.judge.models == ("one", "two")
    assert settings.prices == {"a/b.c": Price(1, 2.5)}
    assert find_endpoint("chutes").key == "k"


@pytest.mark.parametrize(
    ("toml", "dotenv", "named"),
    [
        ("[deul]\nturns = 1", "", "`deul`"),
        ("[duel]\ntruns = 1", "", "`duel.truns`"),
        ("[duel]\nturns = 0", "", "`duel.turns`"),
        ("[duel\n", "", "`chain.toml`"),
        ("[duel]\nmodel = ''", "", "`duel.model`"),
        ("[judge]\nmodels = []", "", "`judge.models`"),
        ("[prices.m]\ninput = nan\noutput = 1", "", "`prices.m.input`"),
        ("duel = 3", "", "`duel`"),
        ("", "CHAIN_DEUL__TURNS=1", "`deul`"),
        ("", "CHAIN_DUEL__TRUNS=1", "`duel.truns`"),
    ],
)
def test_an_unknown_or_wrong_setting_is_refused_in_one_sentence(toml: str, dotenv: str, named: str) -> None:
    Path("chain.toml").write_text(toml)
    Path(".env").write_text(dotenv)
    with pytest.raises(InferenceError, match=r"[^\n]+\.$") as told:
        load_settings()
    assert named in str(told.value)
    assert "\n" not in str(told.value)


def test_a_key_in_the_place_of_a_section_is_refused_whatever_is_given() -> None:
    Path("chain.toml").write_text("duel = 3")
    with pytest.raises(InferenceError, match=r"`duel` of the settings is unknown or has a wrong"):
        load_settings(duel={"turns": 3})


def test_a_file_that_is_named_must_be_there() -> None:
    assert load_settings().duel.turns == 2000
    with pytest.raises(InferenceError, match=r"`mine\.toml` cannot be read"):
        load_settings(Path("mine.toml"))


@pytest.mark.parametrize("url", ["http://bob:hunter2@localhost:8000/v1", "https://models.org/v1?api_key=abc"])
def test_an_address_with_a_key_is_refused_without_repeating_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for provider, base_url in ((url, ""), ("openai", url)):
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)
        with pytest.raises(InferenceError, match="leave them out and set") as error:
            find_endpoint(provider)
        assert "hunter2" not in str(error.value)
        assert "abc" not in str(error.value)


def test_the_hub_s_router_takes_the_token_of_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InferenceError, match="HF_TOKEN or HUGGINGFACE_API_KEY"):
        find_endpoint("hf")
    store_token("hf_stored")
    assert find_endpoint("hf").key == "hf_stored"
    monkeypatch.setenv("HUGGINGFACE_API_KEY", "hf_1")
    endpoint = find_endpoint("hf")
    assert (endpoint.key, endpoint.base_url) == ("hf_1", "https://router.huggingface.co/v1")


@pytest.mark.parametrize("provider", [name for name in PRESETS if name != "hf"])
def test_a_preset_names_the_variable_of_its_key(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = PRESETS[provider].key_variables
    with pytest.raises(InferenceError, match=variables[0]):
        find_endpoint(provider)
    for variable in variables:
        monkeypatch.setenv(variable, "sk-1")
        endpoint = find_endpoint(provider)
        assert endpoint.key == "sk-1"
        assert "sk-1" not in repr(endpoint)


def test_an_address_may_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUTES_API_KEY", "k")
    monkeypatch.setenv("CHUTES_BASE_URL", "https://x.org/v1")
    # An exported address wins over one from a file.
    Path(".env").write_text("CHUTES_BASE_URL=https://evil.example/v1\n")
    assert find_endpoint("chutes") == Endpoint("chutes", "https://x.org/v1", "k")


def test_an_own_url_never_gets_the_token_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_real")
    own = find_endpoint("http://localhost:8000/v1")
    assert (own.key, own.base_url) == (NO_KEY, "http://localhost:8000/v1")
    monkeypatch.setenv("LLM_API_KEY", "mine")
    assert find_endpoint("https://llm.example/v1").key == "mine"


@pytest.mark.parametrize("provider", ["opnai", "ftp://x/v1", "http://", "http://[::1", "https:///v1"])
def test_an_unknown_provider_is_refused_in_one_sentence(provider: str) -> None:
    with pytest.raises(InferenceError, match=r"^`[^\n]+\.$"):
        find_endpoint(provider)


REMOTE = ("llm.example", "192.168.1.5", "127.0.0.1.evil.example", "localhost.evil.example", "[2001:db8::1]")
LOCAL = ("localhost", "127.0.0.1", "127.8.9.1", "[::1]", "0.0.0.0")


@pytest.mark.parametrize("key", [True, False])
def test_nothing_is_sent_unencrypted_over_the_network(key: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if key:
        monkeypatch.setenv("LLM_API_KEY", "mine")
        monkeypatch.setenv("OPENAI_API_KEY", "mine")
    for host in REMOTE:
        url = f"http://{host}:8000/v1"
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        with pytest.raises(InferenceError, match="unencrypted"):
            find_endpoint(url)
        Path(".env").write_text(f"OPENAI_API_KEY=theirs\nOPENAI_BASE_URL={url}\n")
        with pytest.raises(InferenceError, match=r"OPENAI_BASE_URL in `\.env` unencrypted"):
            find_endpoint("openai")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        with pytest.raises(InferenceError, match="OPENAI_BASE_URL unencrypted"):
            find_endpoint("openai")
    for host in LOCAL:
        assert find_endpoint(f"http://{host}:8000/v1").key == ("mine" if key else NO_KEY)


def test_a_folder_with_its_own_address_and_key_works(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("CHUTES_API_KEY=cpk_theirs\nCHUTES_BASE_URL=https://chutes.example/v1\nHF_TOKEN=hf_2\n")
    theirs = Endpoint("chutes.example", "https://chutes.example/v1", "cpk_theirs", file=Path(".env"))
    assert load_settings().duel.find_endpoint() == theirs
    # The exported key stays with the user.
    monkeypatch.setenv("CHUTES_API_KEY", "cpk_mine")
    assert find_endpoint("chutes") == theirs
    Path(".env").write_text("CHUTES_API_KEY=cpk_theirs\n")
    assert find_endpoint("chutes") == Endpoint("chutes", "https://llm.chutes.ai/v1", "cpk_mine")
    monkeypatch.delenv("CHUTES_API_KEY")
    assert find_endpoint("chutes").key == "cpk_theirs"


EVIL = "https://evil.example/v1"
# What the files of a folder say; the section that is used, and the key of the user that must stay here.
REDIRECTS = [
    (f".env:OPENAI_BASE_URL={EVIL}", "openai", "OPENAI_API_KEY"),
    (f".env:CHUTES_BASE_URL={EVIL}", "chutes", "CHUTES_API_KEY"),
    (f".env:CHAIN_JUDGE__PROVIDER={EVIL}", None, "LLM_API_KEY"),
    (f".env:chain_judge__provider={EVIL}", None, "LLM_API_KEY"),
    (f"chain.toml:[judge]\nprovider = '{EVIL}'", None, "LLM_API_KEY"),
    # The provider of the user is right, but the user has not chosen it.
    ("chain.toml:[judge]\nprovider = 'openai'", None, "OPENAI_API_KEY"),
    (".env:CHAIN_JUDGE__PROVIDER=together", None, "TOGETHER_API_KEY"),
    ("chain.toml:[judge]\nprovider = 'hf'", None, "HF_TOKEN"),
    ("chain.toml:[judge]\nprovider = 'hf'", None, "stored token of the Hub"),
]


def find(provider: str | None) -> Endpoint:
    return find_endpoint(provider) if provider else load_settings().judge.find_endpoint()


@pytest.mark.parametrize(("files", "provider", "key"), REDIRECTS)
def test_a_key_of_the_user_never_follows_a_file(
    files: str, provider: str | None, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, text = files.partition(":")
    Path(name).write_text(text)
    if key.isupper():
        monkeypatch.setenv(key, "sk-mine")
    else:
        store_token("sk-mine")
    with pytest.raises(InferenceError, match=r"^[^\n]+ if you trust the address[^\n]+\.$") as told:
        find(provider)
    assert f"`{name}`" in str(told.value)
    assert key in str(told.value)
    assert "sk-mine" not in str(told.value)
    # Both ways that the message gives.
    variables = dict.fromkeys(("LLM_API_KEY", *(one for p in PRESETS.values() for one in p.key_variables)), "theirs")
    written = Path(".env").read_text() + "\n" if name == ".env" else ""
    Path(".env").write_text(written + "".join(f"{one}={value}\n" for one, value in variables.items()))
    assert find(provider).key == "theirs"
    Path(".env").write_text(written)
    if provider is None:
        typed = load_settings(judge={"provider": load_settings().judge.provider})
        assert typed.judge.find_endpoint().key == "sk-mine"
    else:
        monkeypatch.setenv(PRESETS[provider].url_variable, EVIL)
        assert find(provider) == Endpoint(provider, EVIL, "sk-mine")


def test_a_file_cannot_refer_to_an_exported_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    Path(".env").write_text(
        "LLM_API_KEY=${OPENAI_API_KEY}\nCHAIN_JUDGE__PROVIDER=https://evil.example/${OPENAI_API_KEY}\n"
    )
    assert "sk-mine" not in str([load_settings(), load_settings().judge.find_endpoint().key])


def test_the_key_of_a_folder_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "chain.toml").write_text(f"[judge]\nprovider = '{EVIL}'\n")
    Path(".env").write_text("LLM_API_KEY=sk-mine\n")
    judge = load_settings(tmp_path / "chain.toml").judge
    with pytest.raises(InferenceError, match=f"sends texts to `{EVIL}`, for which there is no key"):
        judge.find_endpoint()


def test_a_file_that_names_the_default_redirects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHUTES_API_KEY", "k")
    Path("chain.toml").write_text("[judge]\nprovider = 'chutes'\n")
    Path(".env").write_text("CHUTES_BASE_URL=https://llm.chutes.ai/v1\n")
    assert find(None) == Endpoint("chutes", "https://llm.chutes.ai/v1", "k")


@pytest.mark.parametrize("exported", [True, False])
def test_settings_of_the_openai_client_stay_with_openai(
    chat_server: ChatServer, exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-mine")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-mine")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer gateway\nX-Gateway-Key: secret")
    if exported:
        monkeypatch.setenv("OPENAI_BASE_URL", chat_server.url)
    else:
        Path(".env").write_text(f"OPENAI_API_KEY=theirs\nOPENAI_BASE_URL={chat_server.url}\n")
    reply = asyncio.run(Chat(find_endpoint("openai")).ask(Request("m", [{"role": "user", "content": "hi"}])))
    assert reply.text == "hi"
    (hit,) = chat_server.hits
    sent = [value for value in hit.headers.values() if "mine" in value or value in ("secret", "Bearer gateway")]
    assert sorted(sent) == (["Bearer gateway", "org-mine", "proj-mine", "secret"] if exported else [])
    assert exported or hit.headers["authorization"] == "Bearer theirs"


def test_a_redirect_is_not_followed(chat_server: ChatServer) -> None:
    with serve_chat() as other:
        chat_server.fail_next(busy(307, headers={"location": f"{other.url}/chat/completions"}))
        chat = Chat(find_endpoint(chat_server.url))
        reply = asyncio.run(chat.ask(Request("m", [{"role": "user", "content": "hi"}])))
        assert other.hits == []
    assert reply.error is not None
    assert f"answered 307: it redirects to {other.url}" in reply.error


@pytest.mark.parametrize("words", [["-m", "pimono_sdpo", "filter", "ns/name", "--out", "rows"], [str(JOB)]])
def test_the_token_of_the_hub_is_not_sent_unencrypted(words: list[str], tmp_path: Path) -> None:
    variables = {"HF_ENDPOINT": "http://hub.invalid", "HF_HOME": str(tmp_path), "PYTHONPATH": str(JOB.parent.parent)}
    environment = {name: value for name, value in os.environ.items() if "TOKEN" not in name} | variables
    for token in ({}, {"HF_TOKEN": "hf_mine"}):
        done = subprocess.run([sys.executable, *words], env=environment | token, capture_output=True, text=True)
        assert done.returncode == 2
        assert ("token of the Hub would be sent unencrypted; use https" in done.stderr) is bool(token)


def test_the_token_of_the_hub_does_not_follow_a_file(tmp_path: Path) -> None:
    """`HF_ENDPOINT` in `.env` is not a setting of this package, and no library reads it either."""
    with serve_chat() as theirs, serve_chat() as mine:
        address = theirs.url.removesuffix("/v1")
        Path(".env").write_text(f"HF_ENDPOINT={address}\nHF_HUB_ENDPOINT={address}\n")
        variables = {"HF_ENDPOINT": mine.url.removesuffix("/v1"), "HF_TOKEN": "hf_mine", "HF_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "pimono_sdpo", "filter", "ns/name", "--out", "rows"]
        done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 2
        assert mine.missing
        assert not theirs.missing
