"""Whether a listener speaks TLS: a client whose first bytes the broker does not understand cannot tell.

A broker closes such a connection without a word, or waits for the rest of what it takes for a length.
"""

from __future__ import annotations

import socket
import ssl
import struct

#: For the connection, and for each answer, in seconds: the probe runs where a broker has been silent for long already.
PROBE_SECONDS = 2.0
#: Length, api key (ApiVersions), version 0, correlation id, no client id.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
#: OpenSSL's reasons where the other side's bytes are no TLS at all.
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "PACKET_LENGTH_TOO_LONG", "BAD_RECORD_TYPE")


def security_mismatch(bootstrap_servers: str, security_protocol: str) -> str | None:
    """Return what is wrong with ``security.protocol``, as advice, for the first listener that says; None if none does.

    bootstrap_servers: host:port, comma-separated. Waits up to PROBE_SECONDS for each answer of each of them.
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
    """Return whether the listener answers a request that is not encrypted."""
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as plain:
            plain.sendall(_API_VERSIONS)
            answer = plain.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 8 and answer[4:] == _API_VERSIONS[8:12]


def _speaks_tls(host: str, port: int) -> bool:
    """Return whether the listener begins a TLS handshake, even if it then wants a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent: what it is, not who
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
