"""Detects whether a listener speaks TLS; a client with the wrong protocol gets no error that says so.

The broker closes such a connection without a response, or waits for the rest of a request whose length it misread.
"""

from __future__ import annotations

import socket
import ssl
import struct

#: Timeout of the connection and of each response, in seconds; short, since the broker has been silent for long already.
PROBE_SECONDS = 2.0
#: Length, api key (ApiVersions), version 0, correlation id, no client id.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
#: OpenSSL's reasons if the other side does not send TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE")


def security_mismatch(bootstrap_servers: str, security_protocol: str) -> str | None:
    """Return advice on a wrong ``security.protocol`` for the first mismatching listener; None if there is none.

    bootstrap_servers: host:port, comma-separated. Blocks up to PROBE_SECONDS for each response of each listener.
    """
    wants_tls = security_protocol.upper().endswith("SSL")
    sasl = "SASL_" if security_protocol.upper().startswith("SASL") else ""
    for address in bootstrap_servers.split(","):
        host, _, port = address.strip().rpartition(":")
        if not port.isdigit():
            continue
        if wants_tls and _speaks_plainly(host.strip("[]"), int(port)):
            return f"{address} does not speak TLS: set security.protocol={sasl}PLAINTEXT, or name a listener with TLS"
        if not wants_tls and _speaks_tls(host.strip("[]"), int(port)):
            return f"{address} speaks TLS: set security.protocol={sasl}SSL, or name a listener without TLS"
    return None


def _speaks_plainly(host: str, port: int) -> bool:
    """Return whether the listener answers an unencrypted request."""
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as plain:
            plain.sendall(_API_VERSIONS)
            response = plain.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(response) == 8 and response[4:] == _API_VERSIONS[8:12]


def _speaks_tls(host: str, port: int) -> bool:
    """Return whether the listener starts a TLS handshake, even if it then requires a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no data is sent
    try:
        with (
            socket.create_connection((host, port), PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return error.reason is not None and error.reason not in _NO_TLS
    except OSError:
        return False
