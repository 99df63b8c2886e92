"""The webhook for pending releases: some tries, no redirect, no secret, no delay for others."""

from datetime import timedelta

import httpx
import pytest
from pydantic import SecretStr

from reefcommon.errors import BadConfig
from reefcommon.events import Release, ReleasePending, ReleasePublished, utc_now
from reefkit.retry import RetryPolicy
from services.publisher.settings import Settings
from services.publisher.webhook import Webhook, webhook_routes

URL = "https://hooks.example/services/TOKEN"


def pending(at=None):
    at = at or utc_now()
    release = Release(
        release_id="r1-abc", scenario="default", sequence=1, kind="harness", content_id="h-1",
        operation="harness", load_id="i:1", created_at=at, reason="four\nsaid so",
    )  # fmt: skip
    return ReleasePending(event_id="cnd-1", at=at, scenario="default", release=release)


def hook(*answers):
    asked, left = [], list(answers)

    def answer(request):
        asked.append(request)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    transport = httpx.MockTransport(answer)
    return Webhook(SecretStr(URL), RetryPolicy(0.001, 0.002, 3), transport=transport), asked


async def test_a_pending_release_is_told_once() -> None:
    webhook, asked = hook(httpx.Response(204))
    await webhook.on_publication(pending())
    (request,) = asked
    assert str(request.url) == URL
    assert b'"release_id":"r1-abc"' in request.content
    assert b"reef promote default r1-abc" in request.content
    assert b"four said so" in request.content
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    "fault", [httpx.Response(500), httpx.ConnectError("no"), httpx.ReadTimeout("slow")]
)
async def test_a_fault_is_tried_again_some_times(fault, capsys) -> None:
    webhook, asked = hook(fault, httpx.Response(200))
    await webhook.on_publication(pending())
    assert len(asked) == 2
    webhook, asked = hook(*[fault] * 5)
    await webhook.on_publication(pending())
    assert len(asked) == 3
    assert "TOKEN" not in "".join(capsys.readouterr())


async def test_a_redirect_is_not_followed() -> None:
    away = httpx.Response(307, headers={"location": "http://169.254.169.254/latest"})
    webhook, asked = hook(*[away] * 3)
    await webhook.on_publication(pending())
    assert {str(request.url) for request in asked} == {URL}


async def test_old_news_and_other_news_are_not_told() -> None:
    webhook, asked = hook()
    await webhook.on_publication(pending(utc_now() - timedelta(days=2)))
    release = pending().release
    await webhook.on_publication(
        ReleasePublished(event_id="r", at=utc_now(), scenario="default", release=release)
    )
    assert asked == []


def test_only_the_setting_names_the_address(monkeypatch) -> None:
    monkeypatch.setenv("REEF_PUBLISHER_WEBHOOK_URL", URL)
    settings = Settings.load()
    assert "TOKEN" not in repr(settings)
    assert len(webhook_routes(settings.webhook_url)) == 1
    for nothing in (None, SecretStr("")):
        assert webhook_routes(nothing) == ()
    with pytest.raises(BadConfig, match="https://host/path") as error:
        webhook_routes(SecretStr("file:///etc/TOKEN"))
    assert "TOKEN" not in str(error.value)
