#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every source file is as clang-format writes it: format_test.sh CLANG_FORMAT ROOT
set -euo pipefail
cd "$2"
"$1" --version
find app bench fuzz include python src tests -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' |
  xargs "$1" --dry-run -Werror
