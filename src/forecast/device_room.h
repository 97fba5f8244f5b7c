// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "configuration/configuration.h"
#include "forecast/ledger.h"

namespace sherd {

/// Returns the bytes that are free on a device: of a GPU, or of the memory of the machine's CPUs,
/// as far as it can be had without swapping. Nothing if that is unknown.
std::optional<int64_t> free_bytes(c10::Device device);

/// Throws a ValueError if a run can't have what its plan has counted, whatever the rest turns out
/// to be: with the bytes, the largest entries and a remedy. `scope` begins the message. Call it
/// before anything is allocated on the device. Does nothing where free_bytes() is unknown.
void check_room(
    const char* scope,
    const Ledger& planned,
    const Configuration& configuration,
    int64_t ranks,
    c10::Device device);

/// The same for a number of free bytes that is known.
void check_room(
    const char* scope,
    const Ledger& planned,
    const Configuration& configuration,
    int64_t ranks,
    c10::DeviceType target,
    int64_t free);

}  // namespace sherd
