"""Which protocols, cipher suites and extensions the server takes: the table of docs/operating.md, asked row by row.

Most hellos are written by hand here, since the OpenSSL of today cannot send the weak ones. KVASIR_WRITE_DOCS=1 writes the
table anew.
"""

import os
import pathlib
import re
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import unittest

from support import Server

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operating.md"
BEGIN = "| a client that offers | gets |\n|---|---|\n"

ALERTS = {40: "handshake_failure", 47: "illegal_parameter", 50: "decode_error", 70: "protocol_version", 71: "insufficient_security",
          80: "internal_error", 86: "inappropriate_fallback", 100: "no_renegotiation", 109: "missing_extension",
          120: "no_application_protocol"}
VERSIONS = {0x0300: "SSL 3.0", 0x0301: "TLS 1.0", 0x0302: "TLS 1.1", 0x0303: "TLS 1.2", 0x0304: "TLS 1.3"}

GOOD = {0xC02B: "ECDHE-ECDSA-AES128-GCM-SHA256", 0xC02C: "ECDHE-ECDSA-AES256-GCM-SHA384", 0xCCA9: "ECDHE-ECDSA-CHACHA20-POLY1305",
        0xC02F: "ECDHE-RSA-AES128-GCM-SHA256", 0xC030: "ECDHE-RSA-AES256-GCM-SHA384", 0xCCA8: "ECDHE-RSA-CHACHA20-POLY1305"}
GOOD13 = {0x1301: "TLS_AES_128_GCM_SHA256", 0x1302: "TLS_AES_256_GCM_SHA384", 0x1303: "TLS_CHACHA20_POLY1305_SHA256"}

# Suites of TLS 1.2 and before by what is wrong with them (the numbers are IANA's).
WEAK = {
    "NULL": [0x0001, 0x0002, 0x003B, 0xC006, 0xC010, 0xC015],
    "anonymous": [0x0018, 0x001A, 0x001B, 0x0034, 0x003A, 0x006C, 0x006D, 0x00A6, 0x00A7, 0xC016, 0xC017, 0xC018, 0xC019],
    "EXPORT": [0x0003, 0x0006, 0x0008, 0x000B, 0x000E, 0x0011, 0x0014, 0x0017, 0x0019, 0x0062, 0x0063, 0x0064],
    "RC4": [0x0004, 0x0005, 0xC002, 0xC007, 0xC00C, 0xC011],
    "DES, 3DES, IDEA, SEED": [0x0007, 0x0009, 0x000A, 0x000C, 0x000F, 0x0012, 0x0013, 0x0015, 0x0016, 0x0096, 0x009A, 0xC003,
                              0xC008, 0xC00D, 0xC012],
    "CBC with ECDHE, with encrypt-then-MAC and without": [0xC009, 0xC00A, 0xC013, 0xC014, 0xC023, 0xC024, 0xC027, 0xC028, 0xC072,
                                                          0xC073, 0xC076, 0xC077],
    "keys sent by RSA, or static ECDH: no forward secrecy": [0x002F, 0x0035, 0x003C, 0x003D, 0x0041, 0x0084, 0x009C, 0x009D,
                                                             0xC004, 0xC005, 0xC00E, 0xC00F, 0xC09C, 0xC09D],
    "DHE": [0x0033, 0x0039, 0x0045, 0x0067, 0x006B, 0x0088, 0x009E, 0x009F, 0xC09E, 0xC09F, 0xCCAA],
    "CCM, CCM_8, ARIA, Camellia-GCM": [0xC0AC, 0xC0AD, 0xC0AE, 0xC0AF, 0xC05C, 0xC05D, 0xC060, 0xC061, 0xC086, 0xC087, 0xC08A],
    "PSK": [0x008C, 0x008D, 0x00A8, 0x00A9, 0xC035, 0xC036, 0xCCAB, 0xCCAC, 0xD001, 0xD002]}

SNI, GROUPS, POINTS, SIGNATURES, HEARTBEAT, ALPN, ETM, EMS, TICKET, VERSIONS_13, KEY_SHARE, RENEGOTIATION = (
    0, 10, 11, 13, 15, 16, 22, 23, 35, 43, 51, 0xFF01)
FALLBACK_SCSV = 0x5600
X25519, P256, SECP160R1 = 29, 23, 16
ECDSA_SHA256, RSA_SHA256, PSS_SHA256, ECDSA_SHA1, RSA_SHA1 = 0x0403, 0x0401, 0x0804, 0x0203, 0x0201


def listed(numbers, width=2):
    packed = b"".join(struct.pack(">H", n) for n in numbers)
    return len(packed).to_bytes(width, "big") + packed


def client_hello(version=0x0303, suites=tuple(GOOD), extensions=None, compression=b"\0"):
    """One record. `extensions` are added to, or take the place of, those that every client sends."""
    usual = {GROUPS: listed([X25519, P256]), POINTS: b"\1\0", SIGNATURES: listed([ECDSA_SHA256, RSA_SHA256, PSS_SHA256])}
    packed = b"".join(struct.pack(">HH", kind, len(data)) + data for kind, data in {**usual, **(extensions or {})}.items())
    body = struct.pack(">H", version) + bytes(range(32)) + b"\0" + listed(suites) + bytes([len(compression)]) + compression
    body += struct.pack(">H", len(packed)) + packed
    message = b"\1" + len(body).to_bytes(3, "big") + body
    return struct.pack(">BHH", 22, 0x0301 if version > 0x0300 else 0x0300, len(message)) + message


def hello13(suites=tuple(GOOD13), **more):
    """Of TLS 1.3 without a key share, so that the answer asks for one and names the suite."""
    return client_hello(0x0303, suites, {VERSIONS_13: listed([0x0304], 1), KEY_SHARE: b"\0\0", **more})


class Answer:
    """The first record: an alert's name, or what a ServerHello chose."""

    def __init__(self, port, hello):
        self.alert, self.suite, self.compression, self.extensions, self.random = None, None, None, {}, b""
        with socket.create_connection(("127.0.0.1", port), timeout=30) as s:
            s.sendall(hello)
            file = s.makefile("rb")
            try:
                kind, self.version, length = struct.unpack(">BHH", file.read(5))
                record = file.read(length)
            except (struct.error, ConnectionResetError):
                self.alert = "the end of the connection"
                return
        if kind == 21:
            self.alert = ALERTS.get(record[1], f"alert {record[1]}")
            return
        assert kind == 22 and record[0] == 2, (kind, record[:4])
        self.version, = struct.unpack_from(">H", record, 4)
        self.random = record[6:38]
        at = 39 + record[38]
        self.suite, self.compression, length = struct.unpack_from(">HBH", record, at)
        at += 5
        end = at + length
        while at < end:
            kind, size = struct.unpack_from(">HH", record, at)
            self.extensions[kind] = record[at + 4:at + 4 + size]
            at += 4 + size
        if VERSIONS_13 in self.extensions:
            self.version, = struct.unpack(">H", self.extensions[VERSIONS_13])

    def text(self):
        return f"refused: {self.alert}" if self.alert else VERSIONS[self.version]


def taken(port, hello_of, numbers):
    """Those of the suites that the server takes: each is left out once it has been chosen."""
    left, found = list(numbers), set()
    while left:
        answer = Answer(port, hello_of(left))
        if answer.alert:
            return found
        found.add(answer.suite)
        left.remove(answer.suite)
    return found


def make_certificate(folder, name, kind):
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", f"{folder}/{name}.key", "-out",
                    f"{folder}/{name}.crt"], check=True, capture_output=True)


class TlsServer(Server):
    def __init__(self, folder, name):
        self.certificate, self.contexts = f"{folder}/{name}.crt", {}
        super().__init__("--ssl-certfile", self.certificate, "--ssl-keyfile", f"{folder}/{name}.key")

    def context(self, version=None):
        context = ssl.create_default_context(cafile=self.certificate)
        if version:
            context.minimum_version = context.maximum_version = version
        return context

    def session(self, version, session=None, name="localhost"):
        """(whether it resumed, its session) of one request."""
        context = self.contexts.setdefault(version, self.context(version))
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as raw, \
                context.wrap_socket(raw, server_hostname=name, session=session) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            while s.recv(65536):  # tickets of TLS 1.3 come with what is read
                pass
            return s.session_reused, s.session


def s_client(port, *flags, send=b""):
    done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *flags], input=send, capture_output=True,
                          timeout=60, check=False)
    return (done.stdout + done.stderr).decode(errors="replace")


class Table(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        make_certificate(cls.folder.name, "ec", ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        make_certificate(cls.folder.name, "rsa", ["rsa:2048"])
        cls.ec = cls.enterClassContext(TlsServer(cls.folder.name, "ec"))
        cls.rsa = cls.enterClassContext(TlsServer(cls.folder.name, "rsa"))

    def both(self, hello):
        """The same answer of the servers with either certificate."""
        answers = {Answer(server.port, hello).text() for server in (self.ec, self.rsa)}
        self.assertEqual(len(answers), 1, answers)
        return answers.pop()

    def protocols(self):
        old = tuple(GOOD) + tuple(n for numbers in WEAK.values() for n in numbers)
        # As of 1995: no extensions, and nothing behind the suites but a challenge.
        ssl2 = bytes.fromhex("802e 01 0002 0015 0000 0010 0700c0 050080 030080 010080 060040 040080 020080") + bytes(16)
        yield "SSL 2.0", self.both(ssl2)
        for version in (0x0300, 0x0301, 0x0302):
            yield VERSIONS[version], self.both(client_hello(version, old))
        yield "TLS 1.2 alone; TLS 1.3 alone", f"{self.both(client_hello())}; {self.both(hello13())}"

    def suites(self):
        found = set()
        for server in (self.ec, self.rsa):
            for begin in range(0, 0x10000, 4096):
                numbers = [n for n in range(begin, begin + 4096) if n != FALLBACK_SCSV]
                found |= taken(server.port, lambda left: client_hello(suites=left), numbers)
        yield "suites of TLS 1.2: any of all 65,535 numbers", "taken: " + ", ".join(
            GOOD.get(n, hex(n)) for n in sorted(found))
        found = set()
        for begin in range(0, 0x10000, 4096):
            found |= taken(self.ec.port, hello13, range(begin, begin + 4096))
        yield "suites of TLS 1.3, likewise", "taken: " + ", ".join(GOOD13.get(n, hex(n)) for n in sorted(found))
        for kind, numbers in WEAK.items():
            answers = {self.both(client_hello(suites=numbers, extensions=more)) for more in ({}, {ETM: b""})}
            yield f"suites: {kind}", ", ".join(sorted(answers))

    def parameters(self):
        yield "only a weak curve (secp160r1)", self.both(client_hello(extensions={GROUPS: listed([SECP160R1])}))
        yield "only signatures with SHA-1", self.both(client_hello(extensions={SIGNATURES: listed([ECDSA_SHA1, RSA_SHA1])}))
        yield "TLS 1.2 as a fallback (TLS_FALLBACK_SCSV)", self.both(client_hello(suites=(*GOOD, FALLBACK_SCSV)))
        marked = Answer(self.ec.port, client_hello()).random.endswith(b"DOWNGRD\x01")
        yield "TLS 1.2 at most", "TLS 1.2, " + ("marked in the server's random" if marked else "without the mark")
        chosen = Answer(self.ec.port, client_hello(compression=b"\1\0")).compression
        yield "compression (CRIME)", "no compression" if chosen == 0 else f"compression {chosen}"
        answer = Answer(self.ec.port, client_hello(extensions={HEARTBEAT: b"\1", EMS: b"", RENEGOTIATION: b"\0"}))
        yield "heartbeats", "none" if HEARTBEAT not in answer.extensions else "heartbeats"
        both = {EMS, RENEGOTIATION} <= answer.extensions.keys()
        yield "an extended master secret, secure renegotiation", "both" if both else f"only {sorted(answer.extensions)}"
        grease = 0x1A1A
        answer = self.both(client_hello(suites=(grease, *GOOD), extensions={grease: b"\0", GROUPS: listed([grease, P256])}))
        yield "unknown suites, groups and extensions (GREASE) beside known ones", answer

    def names(self):
        def protocol(*offered):
            data = b"".join(bytes([len(p)]) + p for p in offered)
            answer = Answer(self.ec.port, client_hello(extensions={ALPN: struct.pack(">H", len(data)) + data}))
            return answer.text() if answer.alert else answer.extensions.get(ALPN, b"\0\0\0none")[3:].decode()

        yield "ALPN: `h2` and `http/1.1`", f"`{protocol(b'h2', b'http/1.1')}`"
        yield "ALPN: `h2` alone", protocol(b"h2")
        yield "no ALPN", self.both(client_hello()) + ", and HTTP/1.1 is spoken"
        certificates = set()
        for name in ("localhost", "other.example", None):
            context = self.ec.context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with socket.create_connection(("127.0.0.1", self.ec.port), timeout=30) as raw, \
                    context.wrap_socket(raw, server_hostname=name) as s:
                certificates.add(s.getpeercert(binary_form=True))
        yield "SNI: any name, or none", "the one certificate" if len(certificates) == 1 else f"{len(certificates)} certificates"

    def sessions(self):
        for version, title in ((ssl.TLSVersion.TLSv1_2, "TLS 1.2"), (ssl.TLSVersion.TLSv1_3, "TLS 1.3")):
            _, session = self.ec.session(version)
            resumed = self.ec.session(version, session)[0]
            yield f"a session ticket of {title}", "resumed" if resumed else "a new handshake"
        told = s_client(self.ec.port, "-tls1_2", "-CAfile", self.ec.certificate, send=b"R\n")
        yield "renegotiation, asked for by the client", "refused: no_renegotiation" if "no renegotiation" in told else told
        told = s_client(self.ec.port, "-tls1_3", "-CAfile", self.ec.certificate, "-ign_eof",
                        send=b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        yield "early data (0-RTT)", "none is allowed" if "Max Early Data: 0" in told else told
        _, session = self.ec.session(ssl.TLSVersion.TLSv1_3)
        self.ec.signal(signal.SIGHUP)
        self.assertTrue(self.ec.wait_log("SIGHUP: certificates were read again"), self.ec.log)
        resumed = self.ec.session(ssl.TLSVersion.TLSv1_3, session)[0]
        yield "a session ticket from before a SIGHUP", "resumed" if resumed else "a new handshake"

    def plain(self):
        with socket.create_connection(("127.0.0.1", self.ec.port), timeout=30) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            yield "plain HTTP", s.makefile("rb").readline().split(b" ")[1].decode() + ", and the connection closes"
            while s.recv(65536):  # to its end
                pass

    def test_the_page_has_what_the_server_does(self):
        rows = [row for part in (self.protocols, self.suites, self.parameters, self.names, self.sessions, self.plain)
                for row in part()]
        table = "".join(f"| {offer} | {answer} |\n" for offer, answer in rows)
        before, found, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        self.assertTrue(found, f"{PAGE} has no such table")
        old = re.match(r"(?:\|.*\n)*", after).group(0)
        if os.environ.get("KVASIR_WRITE_DOCS"):
            PAGE.write_text(before + BEGIN + table + after[len(old):], encoding="utf-8")
        else:
            self.maxDiff = None
            self.assertEqual(old.splitlines(), table.splitlines(),
                             "docs/operating.md is stale: run this test with KVASIR_WRITE_DOCS=1")


if __name__ == "__main__":
    unittest.main(verbosity=2)
