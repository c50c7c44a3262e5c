"""TLS and SASL for both clients: translates librdkafka's keys for Penstock's own connections.

A table lists the supported ``ssl.*`` and ``sasl.*`` keys. All others are rejected: silently ignoring one could open a
connection that is less secure than the user expects.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from penstock.topology.errors import ConfigError

from . import sasl
from .oidc import OidcTokens
from .secret_file import SecretFile, newest

logger = logging.getLogger(__name__)

#: Keys that only one of the two clients uses, or that are read below by name.
_KNOWN = frozenset(
    (
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.kerberos.service.name",
        # librdkafka runs kinit with these; Penstock's connections use the ticket cache that kinit fills.
        "sasl.kerberos.principal",
        "sasl.kerberos.keytab",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.oauthbearer.config",
        "oauth_cb",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "https.ca.location",
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

#: The keys of files that are read again when they change.
_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
#: Keys that a user may expect to work, and the alternative to each.
_REFUSED: Mapping[str, str] = {
    "ssl.keystore.": "use PEM files: ssl.certificate.location and ssl.key.location (openssl pkcs12 converts them)",
    "ssl.truststore.": "use a PEM file: ssl.ca.location",
    "ssl.engine.": "OpenSSL engines are not supported; use PEM files",
    "ssl.providers": "OpenSSL providers are not supported",
    "ssl.curves.list": "use ssl.cipher.suites, or the default curves",
    "ssl.sigalgs.list": "use the default signature algorithms",
    "ssl.ca.certificate.stores": "use a PEM file: ssl.ca.location",
    "sasl.jaas.config": "use sasl.username and sasl.password",
    "sasl.oauthbearer.": (
        "sasl.oauthbearer.method=oidc takes a client's id and secret; for other ways to get a token give a function as "
        "oauth_cb (consumer.oauth_cb, producer.oauth_cb …)"
    ),
    "sasl.login.": "use oauth_cb for OAUTHBEARER, sasl.username and sasl.password for PLAIN and SCRAM",
    "sasl.client.callback.handler.class": "use oauth_cb for OAUTHBEARER",
}

#: Required keys of sasl.oauthbearer.method=oidc.
_OIDC = ("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def is_security_key(name: str) -> bool:
    """Return True for TLS and SASL keys."""
    return name.startswith(("ssl.", "sasl.")) or name in _KNOWN


def check_security_keys(settings: Mapping[str, object]) -> None:
    """Raise ConfigError for a TLS or SASL key that is not supported by both clients."""
    for name in settings:
        if is_security_key(name) and name not in _KNOWN:
            advice = next((advice for start, advice in _REFUSED.items() if name.startswith(start)), None)
            raise ConfigError(f"{name} is not supported: {advice or 'it is not a key of librdkafka'}.")


@dataclass(frozen=True)
class Security:
    """How connections are secured. mechanism: makes a SASL exchange with a host, None without SASL."""

    tls: Tls | None = None
    mechanism_name: str = ""
    mechanism: sasl.Mechanism | None = None


class Tls:
    """The TLS settings, by librdkafka's names. Files that are renewed, e.g. by cert-manager, count for new handshakes.

    Raises ConfigError for files or values that OpenSSL rejects.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = settings
        self._files = WatchedFiles(_tls_files(settings))
        self._context = ssl_context(settings)
        self._lock = threading.Lock()
        self._has_failed = False

    def context(self) -> ssl.SSLContext:
        """Return a context of the current files. Any thread may call it; it may wait for a disk.

        While they cannot be used, e.g. because only one of certificate and key is replaced, the last context is kept.
        """
        with self._lock:
            changed = self._files.have_changed()
            if changed or self._has_failed:
                self._renew(says=changed)
            return self._context

    def _renew(self, says: bool) -> None:
        """Read the files. says: the same failure is logged once, although each handshake tries again."""
        try:
            self._context = ssl_context(self._settings)
        except ConfigError as error:
            self._has_failed = True
            if says:
                logger.warning("%s The files are used as they were; the next connection reads them again.", error)
        else:
            self._has_failed = False
            logger.info("Read the renewed TLS files %s", ", ".join(self._files.names))


class WatchedFiles:
    """Files that may be renewed while they are used."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._seen = self._look()

    def have_changed(self) -> bool:
        """Return True if they have changed since the last call, or since they were created."""
        before, self._seen = self._seen, self._look()
        return self._seen != before

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_state_of(name) for name in self.names]


def read_once(settings: Mapping[str, object]) -> WatchedFiles:
    """Return the files that librdkafka reads from settings at the creation of a client: TLS and secrets."""
    secured = str(settings.get("security.protocol", "")).upper().endswith("SSL")
    return WatchedFiles([*(_tls_files(settings) if secured else ()), *_secret_files(settings, "sasl.")])


def _tls_files(settings: Mapping[str, object]) -> list[str]:
    given = [str(settings[name]) for name in _FILES if name in settings]
    trusted = [] if _has_authorities(settings) else _default_authorities()
    return [*given, *trusted, *_secret_files(settings, "ssl.")]


def _secret_files(settings: Mapping[str, object], start: str) -> list[str]:
    given = (value for name, value in settings.items() if name.startswith(start))
    return [str(value.path) for value in given if isinstance(value, SecretFile)]


def _has_authorities(settings: Mapping[str, object]) -> bool:
    return "ssl.ca.location" in settings or "ssl.ca.pem" in settings


def _default_authorities() -> list[str]:
    """Return the file and the folder of the system's certificates, even if one of them does not exist."""
    paths = ssl.get_default_verify_paths()
    named = (paths.openssl_cafile_env, paths.openssl_cafile), (paths.openssl_capath_env, paths.openssl_capath)
    return [os.environ.get(variable, default) for variable, default in named]


def _state_of(file: str) -> tuple[int, int, int] | None:
    """Return values that change with a file's content, None if it cannot be read; links are followed."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


PLAINTEXT = Security()


def security(settings: Mapping[str, object]) -> Security:
    """Return the Security of librdkafka's settings; raises ConfigError."""
    check_security_keys(settings)
    protocol = str(settings.get("security.protocol") or "PLAINTEXT").upper()
    if protocol not in _PROTOCOLS:
        raise ConfigError(f"security.protocol={protocol} is not valid: expected one of {', '.join(_PROTOCOLS)}.")
    tls = Tls(settings) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return Security(tls)
    name = str(settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "GSSAPI").upper()
    if name not in _MECHANISMS:
        raise ConfigError(f"sasl.mechanism={name} is not valid: expected one of {', '.join(_MECHANISMS)}.")
    return Security(tls, name, _mechanism(name, settings))


def _mechanism(name: str, settings: Mapping[str, Any]) -> sasl.Mechanism:
    if name == "GSSAPI":
        return sasl.gssapi(settings.get("sasl.kerberos.service.name", "kafka"))
    if name == "OAUTHBEARER" and str(settings.get("sasl.oauthbearer.method", "")).lower() == "oidc":
        _require(settings, name, _OIDC)
        return sasl.oauthbearer(OidcTokens(settings))
    if name == "OAUTHBEARER":
        oauth_cb, config = settings.get("oauth_cb"), settings.get("sasl.oauthbearer.config", "")
        if not callable(oauth_cb):
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER needs consumer.oauth_cb, a function that returns (token, expiry time), or "
                "sasl.oauthbearer.method=oidc."
            )
        return sasl.oauthbearer(lambda: tuple(oauth_cb(config)))
    _require(settings, name, ("sasl.username", "sasl.password"))
    username, password = settings["sasl.username"], settings["sasl.password"]
    return sasl.plain(username, password) if name == "PLAIN" else sasl.scram(name, username, password)


def _require(settings: Mapping[str, object], mechanism: str, keys: Sequence[str]) -> None:
    missing = [key for key in keys if not settings.get(key)]
    if missing:
        raise ConfigError(f"sasl.mechanism={mechanism} needs {' and '.join(missing)}.")


def ssl_context(settings: Mapping[str, object]) -> ssl.SSLContext:
    """Return the SSLContext of librdkafka's settings; raises ConfigError for files or values that OpenSSL rejects."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if str(settings.get("enable.ssl.certificate.verification", True)).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        _load(context, {name: newest(value) for name, value in settings.items()})
    except (OSError, ssl.SSLError) as error:
        given = sorted(name for name in settings if name.startswith("ssl."))
        raise ConfigError(f"The TLS settings {', '.join(given)} cannot be used: {error}.") from error
    return context


def _load(context: ssl.SSLContext, settings: Mapping[str, Any]) -> None:
    if _has_authorities(settings):
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
