// SPDX-License-Identifier: Apache-2.0
#include "models/blocks/attention_scope.h"

#include <c10/util/Exception.h>

namespace sherd {

at::Tensor checked_documents(const at::Tensor& documents, int64_t B, int64_t S) {
  if (!documents.defined()) return {};
  TORCH_CHECK_VALUE(
      documents.dim() == 1 && documents.scalar_type() == at::kLong && documents.is_cpu() &&
          documents.is_contiguous() && documents.numel() > B,
      "[models] Batch::documents is ", documents.toString(), " of ", documents.sizes(), " on ",
      documents.device(), ": give one dim of int64 on the CPU, with at least ", B + 1,
      " positions for ", B, " sequences");
  const auto* begins = documents.const_data_ptr<int64_t>();
  const int64_t count = documents.numel() - 1;
  int64_t sequences = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool fine = begins[i] < begins[i + 1] && begins[i] / S == (begins[i + 1] - 1) / S;
    TORCH_CHECK_VALUE(
        fine, "[models] Batch::documents has a document from position ", begins[i], " up to ",
        begins[i + 1], ": documents are not empty and within one sequence of ", S, " tokens");
    sequences += begins[i] % S == 0;
  }
  TORCH_CHECK_VALUE(
      begins[0] == 0 && begins[count] == B * S && sequences == B,
      "[models] Batch::documents has positions from ", begins[0], " to ", begins[count],
      ": documents cover all ", B * S, " positions of the batch");
  return count == B ? at::Tensor() : documents;
}

}  // namespace sherd
