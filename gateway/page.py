"""The description as a page: plain HTML that needs no script, no other file, and no other host."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

HTML = "text/html; charset=utf-8"
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5a6675; --line: #d5dbe3; --box: #f5f7fa;
  --link: #0b57b0; --get: #1d6f42; --post: #8a4b00; --delete: #a32020; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --dim: #9aa5b4; --line: #38424f;
  --box: #1d242d; --link: #7db4f5; --get: #7fd4a3; --post: #efb46a; --delete: #f29a9a;
  --paper: #14191f; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }
a { color: var(--link); }
main { display: grid; grid-template-columns: 19rem minmax(0, 52rem); gap: 0 3rem;
  max-width: 78rem; margin: 0 auto; padding: 1.5rem; }
header { grid-column: 1 / -1; border-bottom: 1px solid var(--line); margin-bottom: 1.5rem; }
h1 { margin: 0; font-size: 1.7rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }
h4 { font-size: .85rem; margin: 1rem 0 .25rem; color: var(--dim); }
nav { font-size: .9rem; position: sticky; top: 1rem; align-self: start; max-height: 96vh;
  overflow-y: auto; }
nav h4 { margin-top: .75rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav a { text-decoration: none; overflow-wrap: anywhere; }
section.one { border: 1px solid var(--line); border-radius: 6px; padding: 1rem; margin: 1rem 0; }
p { margin: .4rem 0; }
code { font: .9em ui-monospace, monospace; overflow-wrap: anywhere; }
dl { margin: 0; }
dt { margin-top: .5rem; }
dd { margin: 0 0 0 1.25rem; color: var(--dim); }
.method { font: bold .85rem ui-monospace, monospace; display: inline-block; min-width: 3.6rem; }
.GET { color: var(--get); } .POST { color: var(--post); } .DELETE { color: var(--delete); }
.kind { color: var(--dim); }
.must { color: var(--delete); font-size: .85rem; }
@media (max-width: 60rem) { main { display: block; padding: 1rem; }
  nav { position: static; max-height: none; } section.one { padding: .75rem; } }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'"
)
_SCHEMAS = "#/components/schemas/"


def page_of(description: Mapping[str, Any]) -> bytes:
    """The page of an OpenAPI description."""
    return "".join(_parts(description)).encode()


def _parts(description: Mapping[str, Any]) -> Iterator[str]:
    title = escape(description["info"]["title"])
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head>"
    yield f"<body><main><header><h1>{title}</h1>"
    yield _text(description["info"]["description"])
    yield '<p>The same for programs: <a href="/openapi.json">/openapi.json</a></p></header>'
    by_tag: dict[str, list[tuple[str, str, Any]]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            tag = operation["tags"][0]
            by_tag.setdefault(tag, []).append((method.upper(), path, operation))
    yield '<nav aria-label="Contents">'
    for tag, operations in by_tag.items():
        yield f"<h4>{escape(tag)}</h4><ul>"
        for method, path, operation in operations:
            yield f'<li><a href="#{operation["operationId"]}">{_head(method, path)}</a></li>'
        yield "</ul>"
    yield "<h4>types</h4><ul>"
    for name in description["components"]["schemas"]:
        yield f'<li><a href="#type-{name}">{name}</a></li>'
    yield "</ul></nav><div>"
    for tag, operations in by_tag.items():
        yield f"<h2>{escape(tag)}</h2>"
        for method, path, operation in operations:
            yield from _operation(method, path, operation)
    yield '<h2>errors</h2><section class="one"><dl>'
    for status, response in description["components"]["responses"].items():
        text = _inline(response["description"])
        yield f'<dt id="error-{status}"><code>{status}</code></dt><dd>{text}</dd>'
    yield "</dl>"
    yield from _content(response.get("content", {}))
    yield "</section><h2>types</h2>"
    for name, schema in description["components"]["schemas"].items():
        yield f'<section class="one" id="type-{name}"><h3>{name}</h3>'
        yield _text(schema.get("description", ""))
        yield from _fields(schema)
        yield "</section>"
    yield "</div></main></body></html>\n"


def _head(method: str, path: str) -> str:
    return f'<span class="method {method}">{method}</span> <code>{escape(path)}</code>'


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section class="one" id="{operation["operationId"]}"><h3>{_head(method, path)}</h3>'
    summary, rest = operation["summary"], operation["description"]
    yield f"<p><strong>{_inline(summary)}.</strong></p>"
    if not rest.startswith(summary):
        yield _text(rest)
    if "parameters" in operation:
        yield "<h4>Parameters</h4><dl>"
        for one in operation["parameters"]:
            name = f"{one['name']} ({one['in']})" if one["in"] == "path" else one["name"]
            yield _field(name, one["schema"], one.get("description", ""), must=one["required"])
        yield "</dl>"
    if "requestBody" in operation:
        yield "<h4>Body</h4>"
        yield from _content(operation["requestBody"]["content"])
    yield "<h4>Answers</h4><dl>"
    errors = []
    for status, response in operation["responses"].items():
        if "$ref" in response:
            errors.append(f'<a href="#error-{status}"><code>{status}</code></a>')
        else:
            yield f"<dt><code>{status}</code> {_inline(response['description'])}</dt><dd>"
            yield from _content(response.get("content", {}))
            yield "</dd>"
    yield f"</dl><p>Errors: {' '.join(errors)}</p></section>"


def _content(content: Mapping[str, Any]) -> Iterator[str]:
    for media, one in content.items():
        text = one["schema"].get("description", "")
        shown = _inline(text) if text else _kind(one["schema"])
        yield f"<p><code>{escape(media)}</code>: {shown}</p>"


def _fields(schema: Mapping[str, Any]) -> Iterator[str]:
    yield "<dl>"
    required = schema.get("required", [])
    for name, one in schema.get("properties", {}).items():
        yield _field(name, one, one.get("description", ""), must=name in required)
    yield "</dl>"


def _field(name: str, schema: Mapping[str, Any], text: str, *, must: bool) -> str:
    needed = ' <span class="must">required</span>' if must else ""
    shown = f"<dd>{_inline(text)}</dd>" if text else ""
    kind = f'<span class="kind">{_kind(schema)}</span>'
    return f"<dt><code>{escape(name)}</code> {kind}{needed}</dt>{shown}"


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in a few words, with links to types."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_SCHEMAS)
        return f'<a href="#type-{name}">{name}</a>'
    if schema.get("nullable"):
        return f"{_kind({**schema, 'nullable': False})} or null"
    if "allOf" in schema:
        return _kind(schema["allOf"][0])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    kind = escape(str(schema.get("type", "anything")))
    if kind == "array":
        return f"array of ({_kind(schema['items'])})"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of ({_kind(schema['additionalProperties'])})"
    if schema.get("format") == "byte":
        return "base64"
    limits = [
        f"{text} {schema[name]:,}"
        for name, text in _LIMITS.items()
        if name in schema and not (name == "maximum" and schema[name] >= (1 << 56) - 1)
    ]
    return ", ".join([kind, *limits])


_LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "length at least",
    "maxLength": "length at most",
}


def _text(text: str) -> str:
    return f"<p>{_inline(text)}</p>" if text else ""


def _inline(text: str) -> str:
    """Text with ``code`` between backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if number % 2 else one for number, one in enumerate(parts))
