// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

// The programs and scripts that commands start. Each is looked for where this build was set up,
// then in the installation that this program is part of, then on PATH.
namespace sherd::app {

/// Returns the mpirun of the MPI that Sherd was built with. Throws in a build without MPI.
std::string mpirun();
/// Returns a Python that has torch, if it is where Sherd was built or installed.
std::string python();
/// Returns the script that reads checkpoints of torch.distributed.checkpoint.
std::string import_script();
/// Returns the script that renders conversations with a chat template.
std::string chat_script();
/// Returns the script of a name that runs benchmark workloads with FSDP2.
std::string peer_script(const std::string& name);

}  // namespace sherd::app
