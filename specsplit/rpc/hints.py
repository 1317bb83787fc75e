"""What the transport says of a failed call, with what may be wrong and what to do: it names the symptom alone."""

from __future__ import annotations

import re

_HINTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(symptom, re.DOTALL), hint)
    for symptom, hint in (
        (
            "WRONG_VERSION_NUMBER",
            "it does not speak TLS; leave out tls_ca (--tls-ca) to speak in the clear, or give it tls_cert and tls_key",
        ),
        (
            "CERTIFICATE_VERIFY_FAILED",
            "its certificate is not signed by the authority in tls_ca (--tls-ca), or is out of date",
        ),
        (
            "Hostname Verification Check failed",
            "its certificate is for other names; dial it by one of those, or give it a certificate with this one",
        ),
        (
            "Expected SETTINGS frame",
            "what answers there is no gRPC server, but one of web pages or metrics, perhaps; dial the service's own port",
        ),
        (
            "failed to connect.*Socket closed",
            "it hung up before a word was said, as one does that expects TLS (tls_ca, --tls-ca), or a certificate that its own "
            "authority has signed (tls_cert and tls_key, --tls-cert and --tls-key), and that is not out of date",
        ),
        (
            "Method not found|unknown service|unknown method",
            "what answers there does not know this call; it is another service, or of another build",
        ),
    )
)
"""How gRPC says it, and what that means; the first that fits counts."""


def advised(sentence: str) -> str:
    """The sentence of the transport and, where its cause is known, what to do."""
    hint = next((hint for symptom, hint in _HINTS if symptom.search(sentence)), None)
    return sentence if hint is None else f"{sentence}; {hint}"
