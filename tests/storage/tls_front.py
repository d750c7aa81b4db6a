"""A TLS front before a plain server on loopback, and the throw-away certificates that it needs."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority; `file` holds its certificate, with what Python 3.13 asks of one (RFC 5280)."""

    def __init__(self, folder):
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "throw-away authority")])
        usage = dict.fromkeys(("key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False)
        usage |= dict.fromkeys(("digital_signature", "content_commitment", "decipher_only", "crl_sign"), False)
        certificate = self._signed(
            self._name,
            self._key,
            (x509.BasicConstraints(ca=True, path_length=None), True),
            (x509.KeyUsage(key_cert_sign=True, **usage), True),
            (x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False),
        )
        folder.mkdir()
        self.file = folder / "authority.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def context(self, *names):
        """Return a server's side of TLS with a certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        alternatives = x509.SubjectAlternativeName([_general(name) for name in names])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = self._signed(subject, key, (alternatives, False), (issuer, False))
        file = self.folder / "server.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _signed(self, subject, key, *extensions):
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - dt.timedelta(days=1))
        builder = builder.not_valid_after(now + dt.timedelta(days=1))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


class TlsFront:
    """Takes TLS on `port` of 127.0.0.1 and passes what is in it on to `target_port`, both ways."""

    def __init__(self, target_port, context):
        self.target_port = target_port
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self):
        self._thread.start()
        # A client that stands still does not say that it closes, too; half a minute is waited for that otherwise.
        patience = {"ssl_shutdown_timeout": 0.5} if self._context else {}
        self._server = self._run(asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context, **patience))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks, timeout=10))
        self._loop.close()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _serve(self, reader, writer):
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            try:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(_pump(reader, far_writer))
                    pumps.create_task(_pump(far_reader, writer))
            finally:
                await _closed(far_writer)
        await _closed(writer)


class _Proxy(TlsFront):
    """Passes what comes after a CONNECT for any host on."""

    async def _serve(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await super()._serve(reader, writer)


@contextlib.contextmanager
def connect_proxy(target_port):
    """Yield the URL of a proxy that leads to one port of this machine, whatever is asked for."""
    with _Proxy(target_port, None) as proxy:
        yield f"http://127.0.0.1:{proxy.port}"


async def _pump(reader, writer):
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _closed(writer):
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _general(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
