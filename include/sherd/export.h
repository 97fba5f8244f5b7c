// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what libsherd exports; everything else is hidden.
#define SHERD_API __attribute__((visibility("default")))
