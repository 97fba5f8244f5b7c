// SPDX-License-Identifier: Apache-2.0
#pragma once

// One body, compiled for several CPUs and chosen when the program is loaded. The sanitizers'
// runtimes are not up yet at that time, so their builds take the plain body.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHERD_CPU_MULTIVERSION __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SHERD_CPU_MULTIVERSION
#endif
