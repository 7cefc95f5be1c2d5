"""Secrets are masked; settings that only sound like them are not."""

from __future__ import annotations

import pytest

from gainstage.tracking import redact


@pytest.mark.parametrize(
    "recipe",
    [
        {
            "eos_token": "</s>",
            "pad_token_id": 0,
            "max_tokens": 5,
            "generated_tokens": 2e6,
            "keys": ["prompt"],
            "key": "id",
        },
        {"api_key": "env:OPENAI_API_KEY", "judge": {"api_key": "$KEY"}, "hf_token": "", "password": None},
        {
            "load": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "path": "/home/me/keys/model",
            "url": "http://127.0.0.1:8000/v1",
        },
        ["--budget", "generated_tokens=2e6", "token_mean", "credit.group_relative=beta_normalized"],
    ],
)
def test_ordinary_settings_stay(recipe):
    assert redact(recipe) == recipe


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"judge": [{"api_key": "abc"}]}, {"judge": [{"api_key": "***"}]}),
        ({"headers": {"Authorization": "x y"}}, {"headers": {"Authorization": "***"}}),
        ("Bearer abcdefgh.ijk", "Bearer ***"),
        ("https://user:pw@host/x?api_key=abc&n=1", "https://***@host/x?api_key=***&n=1"),
        (["--api-key", "abc", "next"], ["--api-key", "***", "next"]),
        (["--api-key=abc"], ["--api-key=***"]),
        (["models.judge.api_key=abc"], ["models.judge.api_key=***"]),
    ],
)
def test_secrets_are_masked(value, masked):
    assert redact(value) == masked


def test_values_of_secret_variables_are_masked_wherever_they_stand(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse")
    monkeypatch.setenv("SHORT_KEY", "abc")
    assert redact({"error": "refused correct-horse, abc"}) == {"error": "refused ***, abc"}
