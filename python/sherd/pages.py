# SPDX-License-Identifier: Apache-2.0
"""Programs and plans as HTML, for notebooks and browsers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .planning import Plan
    from .programs import Program

_KINDS = ("model_weights", "main_weights", "main_gradients", "arena")
_STREAMS = ("compute", "gather", "reduce", "outer")
_STYLE = """<style>
.sherd table { border-collapse: collapse; margin: 0.5em 0; }
.sherd th, .sherd td { padding: 2px 8px; text-align: left; vertical-align: top; border-bottom: 1px solid #8884; }
.sherd td.number { text-align: right; font-variant-numeric: tabular-nums; }
.sherd i { display: inline-block; height: 0.7em; background: #47a; }
</style>"""


def page_of_program(program: Program) -> str:
    """Returns the whole program: its bytes, its collectives, and what each stream does from boundary to boundary."""
    data = program.json()
    parts = [_memory(program, {}), _collectives(program)]
    parts += [_section(section) for section in data["sections"]]
    return _whole(parts)


def page_of_plan(plan: Plan) -> str:
    """Returns the bytes of a rank and the collectives of a step; the program is folded."""
    parts = [f"<b>one rank of {plan.ranks}</b>", _memory(plan.program, {"moments (fp32)": plan.adamw_bytes()})]
    parts.append(_collectives(plan.program))
    if plan.collective_seconds is not None:
        parts.append(f"<p>collectives take {plan.collective_seconds * 1e3:.2f} ms one after another</p>")
    rows = [
        (_text(one.unit), _text(one.group), _number(one.elements), *map(_mib, (one.gathered_bytes, one.padding_bytes)))
        for one in plan.groups
    ]
    groups = _table(("unit", "group", "elements", "gathered", "padding"), rows)
    parts.append(f"<details><summary>{len(rows)} groups</summary>{groups}</details>")
    parts += [_section(section) for section in plan.program.json()["sections"]]
    return _whole(parts)


def _whole(parts: Iterable[str]) -> str:
    return f'<div class="sherd">{_STYLE}{"".join(parts)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`rows` are cells with their tags."""
    titles = "".join(f"<th>{escape(one)}</th>" for one in head)
    lines = "".join("<tr>" + "".join(row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"


def _text(value: Any) -> str:
    return f"<td>{escape(str(value))}</td>"


def _number(value: int) -> str:
    return f'<td class="number">{value:,}</td>'


def _mib(size: int) -> str:
    return f'<td class="number">{size / 2**20:,.1f} MiB</td>'


def _memory(program: Program, more: dict[str, int]) -> str:
    sizes = {kind.replace("_", " "): getattr(program.bytes, kind) for kind in _KINDS} | more
    largest = max(*sizes.values(), 1)
    rows = [
        (_text(name), _mib(size), f'<td><i style="width: {200 * size / largest:.0f}px"></i></td>')
        for name, size in sizes.items()
    ]
    return _table(("bytes of a rank", "", ""), [*rows, (_text("total"), _mib(sum(sizes.values())), _text(""))])


def _collectives(program: Program) -> str:
    rows = [(_text(kind), _number(one.calls), _mib(one.bytes)) for kind, one in program.traffic.items()]
    return _table(("collective", "in a step", ""), rows)


def _section(section: dict[str, Any]) -> str:
    rows = []
    for boundary in section["boundaries"]:
        cells: dict[str, list[str]] = {stream: [] for stream in _STREAMS}
        for one in section["instructions"][boundary["begin"] : boundary["end"]]:
            words = [one["action"], one.get("group") or one.get("unit") or "", one.get("slot") and f"in {one['slot']}"]
            cells[one["stream"]].append(escape(" ".join(word for word in words if word)))
        moment = _text(" ".join((boundary["kind"], boundary.get("unit", ""))))
        rows.append((moment, *(f"<td>{'<br>'.join(cells[stream])}</td>" for stream in _STREAMS)))
    title = f"{escape(section['name'])}: {len(section['instructions'])} instructions"
    return f"<details><summary>{title}</summary>{_table(('boundary', *_STREAMS), rows)}</details>"
