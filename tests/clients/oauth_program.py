"""An application that authenticates with a token from its own function, and prints the purpose of each token."""

from __future__ import annotations

import json
import sys
import time
from base64 import urlsafe_b64encode

from penstock import KafkaStreams
from tests.clients.programs import copy

LIFETIME_SECONDS = 60
EXTENSIONS = {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}


def token(_config: str) -> tuple[str, float, str, dict[str, str]]:
    """Return an unsecured token, its expiry (s since the epoch), the principal and the extensions."""
    now = time.time()
    claims = {"sub": "reader", "iat": int(now), "exp": int(now + LIFETIME_SECONDS)}
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}.", now + LIFETIME_SECONDS, "reader", EXTENSIONS


def _encoded(part: dict[str, object]) -> str:
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def main() -> None:
    """Run with the arguments of `penstock run`: run PROGRAM -c KEY=VALUE …."""
    given = dict(setting.split("=", 1) for setting in sys.argv[4::2])
    config = {**given, **{f"{client}.oauth_cb": token for client in ("consumer", "producer", "admin")}}
    with KafkaStreams(copy(), config) as streams:
        sys.exit(streams.run())


if __name__ == "__main__":
    main()
