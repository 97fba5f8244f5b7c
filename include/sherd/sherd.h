// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sherd/buffer/dbuffer.h"
#include "sherd/comm/communicator.h"
#include "sherd/comm/mesh.h"
#include "sherd/comm/world.h"
#include "sherd/plan/layout.h"
#include "sherd/plan/network.h"
#include "sherd/plan/placement.h"
