"""Tokens of an OpenID provider, by the client credentials grant (KIP-768): ``sasl.oauthbearer.method=oidc``."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from .secret_file import newest

#: Timeout of a request to the provider, in seconds.
TIMEOUT_SECONDS = 10.0
#: When a token is renewed, as a fraction of its lifetime.
RENEWAL = 0.8
#: Assumed lifetime of a token without expires_in, in seconds (RFC 6749 recommends that providers send it).
DEFAULT_LIFETIME_SECONDS = 300.0


class OidcTokens:
    """A replacement for ``oauth_cb`` that requests a token when the last one has almost expired.

    settings: librdkafka's ``sasl.oauthbearer.`` keys. Thread-safe; raises OSError and ValueError.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._url = str(settings["sasl.oauthbearer.token.endpoint.url"])
        self._client_id = settings["sasl.oauthbearer.client.id"]
        self._client_secret = settings["sasl.oauthbearer.client.secret"]
        self._scope = settings.get("sasl.oauthbearer.scope")
        self._extensions = dict(
            pair.split("=", 1) for pair in (settings.get("sasl.oauthbearer.extensions") or "").split(",") if pair
        )
        self._ca_file = settings.get("https.ca.location")
        ssl.create_default_context(cafile=self._ca_file)  # raises here, not at the first token
        self._lock = threading.Lock()
        self._token = ""
        self._expires = self._renew_at = 0.0

    def _authorization(self) -> str:
        client = f"{self._client_id}:{newest(self._client_secret)}"
        return f"Basic {base64.b64encode(client.encode()).decode()}"

    def __call__(self) -> tuple[str, float, str, Mapping[str, str]]:
        """Return the token, its expiry time (seconds since 1970), an empty principal, and the extensions."""
        with self._lock:
            if time.time() >= self._renew_at:
                self._fetch()
            return self._token, self._expires, "", self._extensions

    def _fetch(self) -> None:
        form = {"grant_type": "client_credentials"} | ({"scope": self._scope} if self._scope else {})
        headers = {"Authorization": self._authorization(), "Accept": "application/json"}
        request = urllib.request.Request(self._url, urllib.parse.urlencode(form).encode(), headers)
        context = ssl.create_default_context(cafile=self._ca_file)  # the file may have been renewed
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as response:
                response = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                detail = error.read(500).decode(errors="replace")
            raise OSError(f"{self._url} answered {error.code} {error.reason}: {detail}") from error
        if not isinstance(response, dict) or not isinstance(response.get("access_token"), str):
            raise ValueError(f"{self._url} answered without an access_token")
        now, lifetime = time.time(), float(response.get("expires_in") or DEFAULT_LIFETIME_SECONDS)
        self._token = response["access_token"]
        self._expires, self._renew_at = now + lifetime, now + lifetime * RENEWAL
