// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks the symbols that libsherd exports; all others are hidden.
#define SHERD_API __attribute__((visibility("default")))
