// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// The name of a checkpoint's folder while it is written.
std::string unfinished_name(const std::string& folder);
/// The name of the checkpoint that was there, while another takes its place.
std::string replaced_name(const std::string& folder);

/// Returns the folder that holds the checkpoint of that name: usually `folder` itself. If a process
/// ended while one checkpoint replaced another, returns the temporary name of a complete one.
std::string locate_checkpoint(const std::string& folder);

/// Renames a folder so that it is no checkpoint any more and can be removed bit by bit; returns the
/// new name. Throws if it can't be renamed.
std::string move_to_trash(const std::string& folder);

/// Removes a folder and everything in it, without following links. What can't be removed stays;
/// returns the first such file and the reason, in words, or nothing.
std::string remove_tree(const std::string& path);

}  // namespace sherd
