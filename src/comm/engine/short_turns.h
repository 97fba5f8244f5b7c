// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sherd {

/// Asks Linux to give this thread, and those that it starts from now on, short turns: on a busy
/// core it gets no larger share, but its turn comes within 0.1 ms instead of several, and a
/// collective takes many turns of all ranks. Before Linux 6.12, or where it is forbidden, nothing
/// changes.
void ask_for_short_turns();

}  // namespace sherd
