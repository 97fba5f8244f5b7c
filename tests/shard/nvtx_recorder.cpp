// SPDX-License-Identifier: Apache-2.0
// Loaded by NVTX into a program (NVTX_INJECTION64_PATH): prints the ranges that it is told of.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <string>

namespace {

std::mutex mutex;
uint64_t last = 0;
std::map<uint64_t, std::string> open_ranges;

nvtxRangeId_t start(const char* name) {
  const std::lock_guard lock(mutex);
  open_ranges[++last] = name;
  std::printf("start %s\n", name);
  return last;
}

void end(nvtxRangeId_t number) {
  const std::lock_guard lock(mutex);
  std::printf("end %s\n", open_ranges.at(number).c_str());
  open_ranges.erase(number);
}

int push(const char* name) {
  const std::lock_guard lock(mutex);
  std::printf("push %s\n", name);
  return 0;
}

int pop() {
  const std::lock_guard lock(mutex);
  std::printf("pop\n");
  return 0;
}

template <class Function>
void replace(NvtxFunctionTable table, NvtxCallbackIdCore which, Function function) {
  *table[which] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
    return 0;
  replace(table, NVTX_CBID_CORE_RangeStartA, &start);
  replace(table, NVTX_CBID_CORE_RangeEnd, &end);
  replace(table, NVTX_CBID_CORE_RangePushA, &push);
  replace(table, NVTX_CBID_CORE_RangePop, &pop);
  return 1;
}
