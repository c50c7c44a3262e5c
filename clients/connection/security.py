"""TLS and SASL for both clients: the keys are librdkafka's, here they are translated for kafka-python's connections.

One table says what each ``ssl.*`` and ``sasl.*`` key becomes. A key that is not in it is refused: to drop one silently
could open a connection that is less safe than its user believes.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from penstock.topology.errors import ConfigError

#: Keys that only one of the two clients needs to know, or that are read below by their names.
_KNOWN = frozenset(
    (
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.service.name",
        # librdkafka runs kinit with these, and kafka-python takes the ticket from the cache that kinit fills.
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.oauthbearer.config",
        "oauth_cb",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    )
)

#: Keys that others would expect to work, and what to do instead.
_REFUSED: Mapping[str, str] = {
    "ssl.keystore.": "use PEM files: ssl.certificate.location and ssl.key.location (openssl pkcs12 converts them)",
    "ssl.truststore.": "use a PEM file: ssl.ca.location",
    "ssl.engine.": "OpenSSL engines are not supported for group membership; use PEM files",
    "ssl.providers": "OpenSSL providers are not supported for group membership",
    "ssl.curves.list": "use ssl.cipher.suites, or the default curves",
    "ssl.sigalgs.list": "use the default signature algorithms",
    "ssl.ca.certificate.stores": "use a PEM file: ssl.ca.location",
    "sasl.jaas.config": "use sasl.username and sasl.password",
    "sasl.oauthbearer.": "give a function that fetches the token as oauth_cb (consumer.oauth_cb, producer.oauth_cb …)",
    "sasl.login.": "use oauth_cb for OAUTHBEARER, sasl.username and sasl.password for PLAIN and SCRAM",
    "sasl.client.callback.handler.class": "use oauth_cb for OAUTHBEARER",
}

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def is_security_key(name: str) -> bool:
    """Return True for keys of TLS and SASL."""
    return name.startswith(("ssl.", "sasl.")) or name in _KNOWN


def check_security_keys(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a TLS or SASL key that not both clients understand."""
    for name in settings:
        if is_security_key(name) and name not in _KNOWN:
            advice = next((advice for start, advice in _REFUSED.items() if name.startswith(start)), None)
            raise ConfigError(f"{name} is not supported: {advice or 'it is not a key of librdkafka'}.")


def kafka_python_security(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return kafka-python's keyword arguments for librdkafka's security settings; raises ConfigError."""
    check_security_keys(settings)
    protocol = str(settings.get("security.protocol") or "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"security.protocol={protocol} is not valid: expected one of {', '.join(_PROTOCOLS)}.")
    arguments: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = ssl_context(settings)
    if protocol.startswith("SASL"):
        arguments |= _sasl(settings)
    return arguments


def _sasl(settings: Mapping[str, Any]) -> dict[str, Any]:
    mechanism = str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "GSSAPI").upper()
    if mechanism not in _MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism} is not valid: expected one of {', '.join(_MECHANISMS)}.")
    arguments: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism == "GSSAPI":
        arguments["sasl_kerberos_service_name"] = settings.get("sasl.kerberos.service.name", "kafka")
    elif mechanism == "OAUTHBEARER":
        if not callable(settings.get("oauth_cb")):
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER needs consumer.oauth_cb, a function that returns (token, expiry time)."
            )
        arguments["sasl_oauth_token_provider"] = _TokenProvider(
            settings["oauth_cb"], settings.get("sasl.oauthbearer.config", "")
        )
    else:
        missing = [name for name in ("sasl.username", "sasl.password") if not settings.get(name)]
        if missing:
            raise ConfigError(f"sasl.mechanism={mechanism} needs {' and '.join(missing)}.")
        arguments["sasl_plain_username"] = settings["sasl.username"]
        arguments["sasl_plain_password"] = settings["sasl.password"]
    return arguments


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Asks librdkafka's oauth_cb for a token each time a connection authenticates."""

    def __init__(self, oauth_cb: Callable[[str], tuple[Any, ...]], config: str) -> None:
        self._oauth_cb = oauth_cb
        self._config = config

    def token(self) -> str:
        """Return the token, without its expiry time."""
        return str(self._oauth_cb(self._config)[0])


def ssl_context(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """Return Python's TLS settings for librdkafka's; raises ConfigError for files or texts that OpenSSL refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if str(settings.get("enable.ssl.certificate.verification", True)).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _load(context, settings)
    except (OSError, ssl.SSLError) as error:
        given = sorted(name for name in settings if name.startswith("ssl."))
        raise ConfigError(f"The TLS settings {', '.join(given)} cannot be used: {error}.") from error
    return context


def _load(context: ssl.SSLContext, settings: Mapping[str, Any]) -> None:
    if "ssl.ca.location" in settings or "ssl.ca.pem" in settings:
        context.load_verify_locations(settings.get("ssl.ca.location"), cadata=settings.get("ssl.ca.pem"))
    else:
        context.load_default_certs()
    with ExitStack() as files:
        certificate = _file(settings, "ssl.certificate", files)
        if certificate:
            context.load_cert_chain(certificate, _file(settings, "ssl.key", files), settings.get("ssl.key.password"))
    if "ssl.crl.location" in settings:
        context.load_verify_locations(settings["ssl.crl.location"])
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    if "ssl.cipher.suites" in settings:
        context.set_ciphers(settings["ssl.cipher.suites"])


def _file(settings: Mapping[str, Any], name: str, files: ExitStack) -> str | None:
    """Return the path of ``<name>.location``, or of a temporary file with ``<name>.pem``: OpenSSL reads files only."""
    if f"{name}.pem" not in settings:
        location = settings.get(f"{name}.location")
        return None if location is None else str(location)
    file = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115  # of mode 600; files closes and deletes it
    files.enter_context(file)
    file.write(settings[f"{name}.pem"])
    file.flush()
    return file.name
