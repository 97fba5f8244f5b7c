// SPDX-License-Identifier: Apache-2.0
#pragma once

// All of Sherd except models/, nn/functional.h, checkpoint/inspect.h and version.h. Errors are
// exceptions: c10::ValueError for wrong arguments; c10::DistBackendError for failed communication;
// other c10::Error for calls at the wrong time, ranks that differ or have failed, an MPI that can't
// be started, and files. plan/ throws std::invalid_argument and std::runtime_error, also through
// the functions that build a program (a budget that is exceeded).

#include "sherd/checkpoint/checkpoint.h"
#include "sherd/comm/communicator.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"
#include "sherd/nn/exchange.h"
#include "sherd/nn/linear.h"
#include "sherd/nn/recompute.h"
#include "sherd/optim/adamw.h"
#include "sherd/plan/cut.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/network.h"
#include "sherd/plan/placement.h"
#include "sherd/plan/program.h"
#include "sherd/shard/accumulate.h"
#include "sherd/shard/boundary.h"
#include "sherd/shard/diagnostics.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/initialise.h"
#include "sherd/shard/late_options.h"
#include "sherd/shard/module.h"
#include "sherd/shard/module_ref.h"
#include "sherd/shard/options.h"
#include "sherd/shard/precision.h"
#include "sherd/shard/recomputed_calls.h"
#include "sherd/shard/shards.h"
#include "sherd/shard/step_graph.h"
#include "sherd/shard/unused.h"
#include "sherd/shard/wrapper.h"
