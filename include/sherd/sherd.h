// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/buffer/dbuffer.h"
#include "sherd/comm/communicator.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"
#include "sherd/nn/linear.h"
#include "sherd/nn/recompute.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/network.h"
#include "sherd/plan/placement.h"
#include "sherd/plan/program.h"
#include "sherd/shard/boundary.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/module.h"
#include "sherd/shard/options.h"
#include "sherd/shard/wrapper.h"
