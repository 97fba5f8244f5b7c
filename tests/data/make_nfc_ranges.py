#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of src/data/tokenizer/nfc_ranges.h, from Python's unicodedata: make_nfc_ranges.py > src/data/tokenizer/nfc_ranges.h"""
import unicodedata

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def marks():
    """With their combining classes."""
    return {code: unicodedata.combining(chr(code)) for code in CODES if unicodedata.combining(chr(code))}


def changed():
    """What NFC replaces, and what it may join with the character before."""
    found = dict.fromkeys([*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)], 0)  # vowels and finals of Hangul
    for code in CODES:
        if unicodedata.normalize("NFC", chr(code)) != chr(code):
            found[code] = 0
            continue
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found[int(parts[1], 16)] = 0
    return found


def table(name, codes):
    ranges = []
    for code in sorted(codes):
        if ranges and ranges[-1][1:] == [code - 1, codes[code]]:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, codes[code]])
    lines, line = [], "   "
    for first, last, combining in ranges:
        entry = f" {{0x{first:X}, 0x{last:X}, {combining}}},"
        if len(line) + len(entry) > 99:
            lines.append(line)
            line = "   "
        line += entry
    return "\n".join([f"inline constexpr CodeRange {name}[] = {{", *lines, line, "};"])


print(f"""// SPDX-License-Identifier: Apache-2.0
// Written by tests/data/make_nfc_ranges.py from Unicode {unicodedata.unidata_version}.
#pragma once

#include <cstdint>

namespace sherd {{

struct CodeRange {{
  uint32_t first, last;
  uint8_t combining;  ///< the combining class
}};

// clang-format off
/// Characters with a combining class, which NFC puts in the order of the classes.
{table("kMarks", marks())}

/// Characters that NFC replaces, or may join with the one before.
{table("kChangedByNfc", changed())}
// clang-format on

}}  // namespace sherd""")
