"""Deltas of a stream put together."""

from typing import Any

MAX_ITEMS = 4096
_NAMES = frozenset({"id", "type", "role", "index", "name"})  # sent once, or whole each time


def merge(into: dict[str, Any], key: str, value: Any) -> None:
    """Add a field of a delta to the message so far. Raises ValueError if a list grows too long."""
    old = into.get(key)
    if isinstance(value, list):
        if not isinstance(old, list):
            old = into[key] = []
        _merge_items(old, value)
    elif not old and not (isinstance(old, dict) and isinstance(value, dict)):
        into[key] = dict(value) if isinstance(value, dict) else value
    elif isinstance(value, str) and isinstance(old, str):
        if key not in _NAMES:
            into[key] = old + value
    elif isinstance(value, dict) and isinstance(old, dict):
        _merge_fields(old, value)
    elif key not in _NAMES:
        into[key] = value


def _merge_items(into: list[Any], items: list[Any]) -> None:
    if len(into) + len(items) > MAX_ITEMS:  # each is compared with those before it
        raise ValueError(f"more than {MAX_ITEMS} parts in one list")
    for item in items:
        if isinstance(item, dict):
            joined(into, item)
        else:
            into.append(item)


def joined(into: list[Any], piece: dict[str, Any]) -> dict[str, Any]:
    """Add a piece to the item that it continues, or as a new item; return the item."""
    if (place := _continued(into, piece)) is None:
        into.append(place := {})
    _merge_fields(place, piece)
    return place


def _merge_fields(into: dict[str, Any], fields: dict[str, Any]) -> None:
    for key, value in fields.items():
        if value is not None:
            merge(into, key, value)


def _continued(into: list[Any], piece: dict[str, Any]) -> dict[str, Any] | None:
    # Providers differ: some number all parallel calls 0, some send no numbers or no ids, some
    # repeat the id or the name in every piece. A piece without a name never begins a call.
    index, piece_id, name = piece.get("index"), piece.get("id"), _name(piece)
    if index is None and not piece_id and name is None:
        return None  # no call: a part of another list
    for old in reversed(into):
        if not isinstance(old, dict):
            continue
        if index is not None and index != old.get("index"):
            continue
        if piece_id and piece_id == old.get("id"):
            return old
        if index is None and piece_id and old.get("id") and not name:
            continue  # a later piece of an earlier call
        return None if name and _begins(piece, old, name) else old
    return None


def _begins(piece: dict[str, Any], old: dict[str, Any], name: str) -> bool:
    if piece.get("id") and old.get("id"):
        return True
    known = _name(old)
    return bool(known) and (piece.get("index") is None or name != known)


def _name(item: dict[str, Any]) -> str | None:
    # empty if the piece states no name, None if it is no call
    inner = item.get("function") or item.get("custom")
    if not isinstance(inner, dict):
        return "" if "function" in item or "custom" in item else None
    return inner.get("name") or ""


def content_of(pieces: list[Any]) -> str | list[Any]:
    """Join the pieces of a content: to a text, or to parts if some are no texts."""
    if all(type(piece) is str for piece in pieces):
        return "".join(pieces)
    parts: list[Any] = []
    for piece in pieces:
        part = {"type": "text", "text": piece} if isinstance(piece, str) else piece
        last = parts[-1] if parts else {}
        if _is_text(part) and _is_text(last) and part.get("type") == last.get("type"):
            last["text"] += part["text"]
        else:
            parts.append(dict(part) if isinstance(part, dict) else part)
    if all(_is_text(part) and part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
