// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// The name of a checkpoint's folder while it is written.
std::string unfinished_name(const std::string& folder);
/// The name of the checkpoint that was there, while another takes its place.
std::string replaced_name(const std::string& folder);

/// Where the checkpoint of that name is: usually there. Where a process ended while one took the
/// place of another, it is what was complete by then, under the name that it had meanwhile.
std::string locate_checkpoint(const std::string& folder);

/// Gives a folder a name that no checkpoint has, so that it can be removed bit by bit: the new
/// name. Throws where it can't be renamed.
std::string move_to_trash(const std::string& folder);

/// Removes a folder and everything in it, without following links. What can't be removed stays;
/// returns the first such file and the reason, in words, or nothing.
std::string remove_tree(const std::string& path);

}  // namespace sherd
