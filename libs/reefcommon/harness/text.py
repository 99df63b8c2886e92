"""The screen for texts of a harness: credentials, injected orders, invisible characters."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

MAX_TEXT_CHARS = 16_000

# Prefixes as issuers document them for secret scanners; key blocks, URLs with a password, JWTs.
_KNOWN_SECRETS = re.compile(
    r"""\b(?:sk|rk|pk)[-_](?:live[-_]|test[-_]|proj[-_]|ant[-_])?[A-Za-z0-9_-]{16,}
    | \bgh[opusr]_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,} | \bglpat-[A-Za-z0-9_-]{16,}
    | \bhf_[A-Za-z0-9]{20,} | \bxox[abeoprs]-[A-Za-z0-9-]{10,} | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_-]{30,} | \bya29\.[A-Za-z0-9_-]{20,}
    | -----BEGIN[ ][A-Z ]{0,40}PRIVATE[ ]KEY | \beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.
    | \b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,100}:[^\s/@$<{]{1,200}@
    | \bBearer\s{1,5}(?![$<{])[A-Za-z0-9._~+/=-]{16,}""",
    re.VERBOSE,
)
_ASSIGNED = re.compile(
    r"""(?:api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|(?:auth|access|refresh|bearer)?[-_ ]?token
       |secret|passw(?:or)?d|pwd|credentials?)
    ["'`]?\s{0,5}
    (?: [:=]{1,2}\s{0,5}["'`]?(?=[^\s"'`]{8})
      | \s(?:is|was)\s{1,5}["'`]?(?=[^\s"'`]{0,60}[0-9])(?=[^\s"'`]{6}) )
    (?P<value>[^\s"'`]{1,200})""",
    re.VERBOSE | re.IGNORECASE,
)
# A long run that mixes cases and has several digits is a key far more often than a word.
_RANDOM_RUN = re.compile(
    r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_+=-]{32})(?=[^\s]{0,200}[a-z])(?=[^\s]{0,200}[A-Z])"
    r"[A-Za-z0-9_+=-]{32,}"
)
_REFERENCE = re.compile(
    r"(?:\$\{?[A-Za-z_]\w*\}?|!printenv\b.*|<[^<>\n]*>|\{\{?[\w .]*\}?\}|process\.env\b.*"
    r"|os\.(?:environ|getenv)\b.*)[.,;)]*",
    re.DOTALL,
)
_SECRET_KEY = re.compile(
    r"(?:(?:api|access|private)key|token|secret|passw(?:or)?d|pwd|authorization|credentials?)$"
)

_TURN_AWAY = (
    r"(?:ignor\w*|disregard\w*|forget\w*|overrid\w*|overrul\w*|bypass\w*|circumvent\w*|violat\w*"
    r"|disobey\w*|neglect\w*|discard\w*|vergiss\w*|missacht\w*|oublie\w*|olvid\w*|pay no attention"
    r"|break out of|not bound by|free from"
    r"|(?:do not|don't|dont|never|stop|no longer|refuse to|quit)"
    r" (?:obey|follow|comply|adher|respect|listen|heed)\w*)"
)
_AUTHORITY = (
    r"(?:rules?|instructions?|guidelines?|guardrails?|polic(?:y|ies)|constraints?|restrictions?"
    r"|directives?|safety|safeguards?|system (?:prompts?|messages?)|prompts?|regeln|anweisungen"
    r"|vorgaben|r[eè]gles|consignes|reglas|instrucciones|(?:everything|anything|all|what)"
    r" (?:\w+ ){0,3}?(?:above|before|told|said|previously|earlier|so far))"
)
_DISOBEDIENCE = re.compile(rf"\b{_TURN_AWAY}(?:[^\w.!?]+[\w']+){{0,6}}?[^\w.!?]+{_AUTHORITY}\b")
_NEGATED = re.compile(r"\b(?:never|do not|don't|must not|may not|should not|cannot)\s+$")
_TAKEOVER = re.compile(
    r"\b(?:new|updated|real) system (?:prompt|message)\b"
    r"|<\|?(?:im_start|im_end|system|endoftext)\|?>|\[/?inst\]|\bjailbr(?:eak|oken)"
    r"|\b(?:developer|dan|god) mode\b"
    r"|\bact as (?:if|though) (?:you have|there are) no (?:rules|restrictions|limits)\b"
)

# C0, DEL, C1, lone surrogates; bidirectional overrides; tags and selectors, which can carry hidden
# text; joiners, fillers and operators without a width; a row of zero widths, which can carry bits.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e0fff"
    r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2060-\u2065"
    r"\u206a-\u206f\u3164\uffa0\ufff0-\ufffb]"
    r"|[\u200b-\u200f\ufe00-\ufe0f\ufeff]{4}"
)
# Letters of other scripts that look like those of the orders.
_LOOKALIKES = str.maketrans(
    "аеорсухіјѕԁһӏѵԛԝгкмтпԍαεορνυικτɪɢɴᴏʀᴇᴀʟꜱᴜᴄᴛᴘᴠᴅʏʙꜰᴋᴍʜ",
    "aeopcyxijsdhlvqwrkmtngaeopvuiktignorealsuctpvdybfkmh",
)


def objection(text: str) -> str | None:
    """Return the reason to refuse a text, without quoting it; None if it is admissible."""
    # If in doubt, refuse: a refused proposal costs a step, an accepted proposal serves every user.
    if len(text) > MAX_TEXT_CHARS:
        return f"is longer than {MAX_TEXT_CHARS} characters"
    if _UNSEEN.search(text):
        return "holds control characters or characters that a reader cannot see"
    plain = _plain(text)
    seen = plain.casefold().translate(_LOOKALIKES)
    if _has_credential(text) or _has_credential(plain):
        return "holds what looks like a credential; name an environment variable instead"
    if _orders_disobedience(plain) or _orders_disobedience(seen):
        return "orders the agent to ignore its rules or instructions"
    return None


def value_objection(value: Any, depth: int = 0) -> str | None:
    """Return the objection to a JSON value. A secret key may hold only a reference."""
    if depth > 8:
        return "is nested more than 8 levels deep"
    if isinstance(value, str):
        return objection(value)
    if isinstance(value, Mapping):
        members = (_member_objection(key, item, depth) for key, item in value.items())
        return next(filter(None, members), None)
    if isinstance(value, list | tuple):
        return next(filter(None, (value_objection(item, depth + 1) for item in value)), None)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return None
    if isinstance(value, float) and value - value == 0:
        return None
    return "holds a value that JSON cannot carry exactly"


def _member_objection(key: Any, item: Any, depth: int) -> str | None:
    if not isinstance(key, str):
        return "has a key that is not a string"
    literal = isinstance(item, int | float) and not isinstance(item, bool)
    spelled_out = isinstance(item, str) and item and not _REFERENCE.fullmatch(item)
    names_secret = _SECRET_KEY.search(re.sub(r"[^a-z]", "", key.lower()))
    if names_secret and (literal or spelled_out):
        return "holds what looks like a credential; name an environment variable instead"
    return objection(key) or value_objection(item, depth + 1)


def _has_credential(text: str) -> bool:
    # Known forms only: this is a screen and no proof.
    random = (sum(map(str.isdigit, run.group())) >= 4 for run in _RANDOM_RUN.finditer(text))
    if _KNOWN_SECRETS.search(text) or any(random):
        return True
    return any(not _REFERENCE.fullmatch(found.group("value")) for found in _ASSIGNED.finditer(text))


def _orders_disobedience(plain: str) -> bool:
    lowered = re.sub(r"\s+", " ", plain.casefold().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    if _TAKEOVER.search(lowered):
        return True
    return any(
        not _NEGATED.search(lowered[max(0, found.start() - 12) : found.start()])
        for found in _DISOBEDIENCE.finditer(lowered)
    )


def _plain(text: str) -> str:
    # The form that the eye reads: without accents, joiners, selectors and soft hyphens.
    even = unicodedata.normalize("NFKD", text)
    return "".join(char for char in even if unicodedata.category(char) not in ("Cf", "Mn"))
