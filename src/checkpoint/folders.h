// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace sherd {

/// Returns the name of a checkpoint's folder while it is written.
std::string unfinished_name(const std::string& folder);
/// Returns the temporary name of an old checkpoint while a new one replaces it.
std::string replaced_name(const std::string& folder);

/// Returns the folder that holds the checkpoint of that name: usually `folder` itself. If a process
/// ended while one checkpoint replaced another, returns the temporary name of a complete one.
std::string locate_checkpoint(const std::string& folder);

/// Renames a folder so that it no longer looks like a checkpoint while it is being removed; returns
/// the new name. Throws if it can't be renamed.
std::string move_to_trash(const std::string& folder);

/// Removes a folder and everything in it, without following links. Files that can't be removed
/// stay; returns the first of them with the reason, or an empty text.
std::string remove_tree(const std::string& path);

}  // namespace sherd
