"""No secret is written down: by name, by value, inside other text, and when one secret holds another."""

from __future__ import annotations

import itertools

import pytest

from lab.secrets import HIDDEN, hub_token, is_secret, redact, redact_env, secret_values

LONG, SHORT = "hf_abcdefghijkl", "abcdef"  # the second lies inside the first


@pytest.mark.parametrize("secrets", [frozenset(pair) for pair in itertools.permutations((LONG, SHORT))])
def test_a_secret_inside_another_leaves_nothing_of_either(secrets):
    text = redact(f"x {LONG} y {SHORT} z", secrets)
    assert text == f"x {HIDDEN} y {HIDDEN} z"


def test_secrets_that_begin_alike_are_both_gone():
    secrets = frozenset({"token-1", "token-12", "token-123"})
    assert redact("token-123 token-12 token-1", secrets) == " ".join([HIDDEN] * 3)


def test_secrets_that_overlap_leave_no_part_behind():
    text = redact("abcdef123ghijkl", frozenset({"abcdef123", "123ghijkl"}))
    assert "ghijkl" not in text and "abcdef" not in text


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "API_KEY", "aws_secret", "DB_PASSWORD", "PASSWD", "CREDENTIALS", "X_AUTH"]
)
def test_names_of_secrets_are_known(name):
    assert is_secret(name) and redact_env({name: "v"}) == {name: HIDDEN}


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "SSH_AUTH_SOCK", "XAUTHORITY", "MAX_NEW_TOKENS", "PATH"]
)
def test_innocent_names_are_left_alone(name):
    assert not is_secret(name) and redact_env({name: "v"}) == {name: "v"}


def test_only_values_long_enough_to_be_a_secret_are_looked_for():
    env = {"TOKEN": "123456", "KEY": "12345", "PATH": "/usr/bin"}
    assert secret_values(env) == {"123456"}


def test_values_of_other_variables_are_redacted_too():
    assert redact_env({"URL": "https://x:123456@host"}, frozenset({"123456"})) == {
        "URL": f"https://x:{HIDDEN}@host"
    }


def test_the_secrets_of_this_process_are_meant_unless_another_environment_is_given(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "only-in-this-process")
    assert "only-in-this-process" in secret_values()
    assert secret_values({}) == frozenset()


def test_the_token_of_the_hubs_own_login_is_a_secret_too(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert hub_token({"HF_HOME": str(tmp_path)}) is None
    (tmp_path / "token").write_text("hf_from_login_1234\n")
    assert hub_token({"HF_HOME": str(tmp_path)}) == "hf_from_login_1234"
    assert "hf_from_login_1234" in secret_values()
    assert hub_token({"HF_HOME": str(tmp_path), "HF_TOKEN": " hf_variable "}) == "hf_variable"


def test_the_password_of_a_proxy_is_a_secret_as_written_and_decoded():
    found = secret_values({"HTTPS_PROXY": "http://me:p%40ssword@proxy:3128", "BAD": "http://[x@y"})
    assert found == {"p%40ssword", "p@ssword"}


@pytest.mark.parametrize(
    "value",
    [
        "someone:{}@proxy:3128",
        "http://{}@proxy:3128",
        "https://a:short-one@h/ https://b:{}@h/simple",
        "--index-url=https://b:{}@h/simple",
        "https://{}:x-oauth-basic@h/",
        "socks5h://b:{}@h:1",
        "http://b:in@side{}@h",
    ],
)
def test_what_a_url_in_any_variable_gives_away_is_hidden(value):
    token = "hf_0123456789"
    env = {"SOME_ARGS": value.format(token)}
    assert token not in str(redact_env(env, secret_values(env)))


def test_a_secret_with_a_line_break_around_it_is_hidden_without_it_too():
    env = {"HF_TOKEN": " hf_0123456789\n"}
    assert redact("Bearer hf_0123456789.", secret_values(env)) == "Bearer [redacted]."


@pytest.mark.parametrize("value", ["ssh://developer@host/x", "git@example.org:a/b", "https://h/@scope/name"])
def test_names_that_are_no_secret_stay(value):
    assert redact_env({"A": value}, secret_values({"A": value})) == {"A": value}


def test_each_line_of_a_secret_is_one():
    """A client that refuses a token with a line break prints it with the break escaped."""
    secrets = secret_values({"HF_TOKEN": "hf_first_line\nhf_second_line\r\n", "PATH": "/usr/bin"})
    said = redact("bad header: 'Bearer hf_first_line\\nhf_second_line'", secrets)
    assert "first" not in said and "second" not in said
