"""Settings: precedence, refused values, and that keys are never shown."""

from pathlib import Path

import pytest
from huggingface_hub import get_token

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.settings import NO_KEY, PRESETS, Price, find_endpoint, load_settings, read_environment


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
    assert find_endpoint("chutes", read_environment()).key == "k"


@pytest.mark.parametrize(
    ("toml", "dotenv", "named"),
    [
        ("[deul]\nturns = 1", "", "`deul`"),
        ("[duel]\ntruns = 1", "", "`duel.truns`"),
        ("[duel]\nturns = 0", "", "`duel.turns`"),
        ("[duel]\nturns = 'many'", "", "`duel.turns`"),
        ("[duel\n", "", "`chain.toml`"),
        ("[duel]\nmodel = ''", "", "`duel.model`"),
        ("[judge]\nmodels = []", "", "`judge.models`"),
        ("[judge]\nmodels = ['']", "", "`judge.models"),
        ("[prices.m]\ninput = -1\noutput = 1", "", "`prices.m.input`"),
        ("[prices.m]\ninput = nan\noutput = 1", "", "`prices.m.input`"),
        ("[prices.m]\ninput = 1", "", "`prices.m.output`"),
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
def test_an_address_with_a_key_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InferenceError, match="leave them out and set") as error:
        find_endpoint(url, {})
    assert "hunter2" not in str(error.value)
    assert "abc" not in str(error.value)


@pytest.mark.skipif(bool(get_token()), reason="logged in to the Hub")
def test_the_hub_s_router_takes_the_token_of_the_login() -> None:
    with pytest.raises(InferenceError, match="HF_TOKEN or HUGGINGFACE_API_KEY"):
        find_endpoint("hf", {})
    endpoint = find_endpoint("hf", {"HUGGINGFACE_API_KEY": "hf_1"})
    assert (endpoint.key, endpoint.base_url) == ("hf_1", "https://router.huggingface.co/v1")


@pytest.mark.parametrize("provider", [name for name in PRESETS if name != "hf"])
def test_a_preset_names_the_variable_of_its_key(provider: str) -> None:
    variables = PRESETS[provider].key_variables
    with pytest.raises(InferenceError, match=variables[0]):
        find_endpoint(provider, {})
    for variable in variables:
        endpoint = find_endpoint(provider, {variable: "sk-1"})
        assert endpoint.key == "sk-1"
        assert "sk-1" not in repr(endpoint)


def test_an_address_may_be_moved() -> None:
    moved = find_endpoint("chutes", {"CHUTES_API_KEY": "k", "CHUTES_BASE_URL": "https://x.org/v1"})
    assert moved.base_url == "https://x.org/v1"


def test_an_own_url_never_gets_the_token_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_real")
    own = find_endpoint("http://localhost:8000/v1", read_environment())
    assert (own.key, own.base_url) == (NO_KEY, "http://localhost:8000/v1")
    assert find_endpoint("https://llm.example/v1", {"LLM_API_KEY": "mine"}).key == "mine"


@pytest.mark.parametrize("provider", ["opnai", "ftp://x/v1", "http://", "http://[::1", "https:///v1"])
def test_an_unknown_provider_is_refused_in_one_sentence(provider: str) -> None:
    with pytest.raises(InferenceError, match=r"^`[^\n]+\.$"):
        find_endpoint(provider, {})


def test_a_key_is_not_sent_unencrypted_over_the_network() -> None:
    with pytest.raises(InferenceError, match="unencrypted"):
        find_endpoint("http://llm.example/v1", {"LLM_API_KEY": "mine"})
