// SPDX-License-Identifier: Apache-2.0
// What a position sees: the cache of generation, and the documents of a sequence.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sherd/models/hybrid.h"
#include "sherd/models/llama.h"
#include "sherd/models/moe.h"

namespace sherd {
namespace {

constexpr int64_t kVocab = 48;

struct Kind {
  std::string name;
  std::function<std::shared_ptr<LanguageModel>(const LlamaOptions&)> make;
};
void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

std::vector<Kind> kinds() {
  const ExpertOptions experts{.count = 4, .top_k = 2, .ffn = 24, .balance = 0};
  return {
      {"llama", [](const auto& base) { return make_llama(base); }},
      {"qwen3",
       [](auto base) {
         base.qk_norm = base.tie_embeddings = true;
         return make_llama(base);
       }},
      {"moe",
       [experts](const auto& base) {
         return make_moe({base, experts});
       }},
      {"hybrid", [experts](const auto& base) {
         return make_hybrid({base, experts, {}, "*-*E", /*rope_fraction=*/0.5});
       }}};
}

/// A model on one rank, in fp64, that is not sharded.
std::shared_ptr<LanguageModel> model_of(const Kind& kind, LlamaOptions base = {}) {
  base.vocab = kVocab;
  base.dim = 32;
  base.layers = 4;
  base.heads = 4;
  base.kv_heads = 2;
  base.head_dim = 8;
  base.ffn = 64;
  const auto usual = at::get_default_dtype();
  at::set_default_dtype(caffe2::TypeMeta::Make<double>());
  auto model = kind.make(base);
  at::set_default_dtype(usual);
  at::manual_seed(3);
  const at::NoGradGuard no_grad;
  for (auto& weight : model->parameters()) {
    weight.normal_(weight.dim() == 1 ? 1 : 0, 0.2);
  }
  return model;
}

at::Tensor tokens(int64_t B, int64_t S) {
  at::manual_seed(B * 100 + S);
  return at::randint(0, kVocab, {B, S}, at::kLong);
}

at::Tensor numbers(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

class SequenceScopeTest : public ::testing::TestWithParam<Kind> {};

TEST_P(SequenceScopeTest, ACacheGivesTheLogitsOfTheWholeSequence) {
  const at::NoGradGuard no_grad;
  const auto model = model_of(GetParam());
  ASSERT_TRUE(model->caches());
  const auto rows = tokens(2, 13);
  const auto whole = model->logits({rows, {}});
  KeyValueCache cache{.capacity = 13};
  // The prompt, single positions, and several at once after others.
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 6}, {6, 7}, {7, 11}, {11, 13}}) {
    const auto some = rows.slice(1, begin, end).contiguous();
    const auto next = model->next_logits({some, {}}, &cache);
    EXPECT_LT(difference(next, whole.select(1, end - 1)), 1e-9) << begin;
    EXPECT_EQ(cache.length, end);
  }
  EXPECT_LT(difference(model->next_logits({rows, {}}), whole.select(1, 12)), 1e-9);
  EXPECT_THROW(model->next_logits({rows, {}}, &cache), c10::ValueError);  // full
}

/// The loss, and all gradients, of some batches.
std::pair<double, std::vector<at::Tensor>> pass(
    LanguageModel& model, const std::vector<Batch>& batches) {
  model.zero_grad();
  // All forwards first: a backward that recomputes must see its own documents.
  std::vector<at::Tensor> losses;
  for (const auto& batch : batches) losses.push_back(model.forward(batch));
  double loss = 0;
  for (const auto& one : losses) {
    loss += one.item<double>();
    one.backward();
  }
  std::vector<at::Tensor> gradients;
  for (const auto& weight : model.parameters()) gradients.push_back(weight.grad().clone());
  return {loss, gradients};
}

TEST_P(SequenceScopeTest, DocumentsAreLikeSequencesOfTheirOwn) {
  for (const auto recompute : {Recompute::none, Recompute::full, Recompute::selective}) {
    const auto model = model_of(GetParam(), {.recompute = recompute});
    std::vector<Batch> together, apart;
    for (const auto& begins :
         {std::vector<int64_t>{0, 3, 4, 11, 12, 20, 24}, std::vector<int64_t>{0, 12, 13, 24}}) {
      const auto rows = tokens(2, 12 + std::ssize(together));
      const auto inputs = rows.slice(1, 0, 12).contiguous();
      const auto targets = inputs.roll(1, 1);
      together.push_back({inputs, targets, numbers(begins)});
      for (size_t i = 0; i + 1 < begins.size(); ++i) {
        const auto part = [&](const at::Tensor& x) {
          return x.flatten().slice(0, begins[i], begins[i + 1]).unsqueeze(0).contiguous();
        };
        apart.push_back({part(inputs), part(targets)});
      }
    }
    const auto [loss, gradients] = pass(*model, together);
    const auto [expected, wanted] = pass(*model, apart);
    EXPECT_NEAR(loss, expected, 1e-5 * expected);  // a sum in fp32
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT(difference(gradients[i], wanted[i]), 1e-9 * wanted[i].abs().max().item<double>())
          << model->named_parameters().keys()[i];
    }
  }
}

TEST_P(SequenceScopeTest, OneDocumentASequenceIsAsWithout) {
  const auto model = model_of(GetParam());
  const auto rows = tokens(3, 8);
  const auto plain = pass(*model, {{rows, rows}});
  const auto given = pass(*model, {{rows, rows, numbers({0, 8, 16, 24})}});
  EXPECT_EQ(plain.first, given.first);
  for (size_t i = 0; i < plain.second.size(); ++i) {
    EXPECT_TRUE(at::equal(plain.second[i], given.second[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, SequenceScopeTest, ::testing::ValuesIn(kinds()), [](const auto& kind) {
      return kind.param.name;
    });

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(SequenceScope, BoundariesThatAreNoneAreRefused) {
  const auto model = model_of(kinds()[0]);
  const auto rows = tokens(2, 6);
  const std::vector<std::vector<int64_t>> wrong{{},         {0, 12},   {0, 6, 6, 12},    {0, 7, 12},
                                                {1, 6, 12}, {0, 6, 9}, {0, 6, 4, 6, 12}, {0, 6, 14},
                                                {0, 3, 12}};
  for (const auto& begins : wrong) {
    const auto message = refusal([&] { model->forward({rows, rows, numbers(begins)}); });
    EXPECT_NE(message.find("Batch::documents"), std::string::npos) << numbers(begins);
  }
  const auto message = refusal([&] {
    model->forward({rows, rows, numbers({0, 6, 12}).to(at::kInt)});
  });
  EXPECT_NE(message.find("int64"), std::string::npos) << message;
}

TEST(SequenceScope, MambaKnowsNeitherDocumentsNorCaches) {
  const auto model =
      model_of({"mamba", [](const auto& base) {
                  HybridOptions options;
                  options.base = base;
                  options.mamba = {.state = 8, .head_dim = 16, .groups = 2, .chunk = 8};
                  options.pattern = "*-M-";
                  return make_hybrid(options);
                }});
  const auto rows = tokens(1, 8);
  const auto documents = refusal([&] { model->forward({rows, rows, numbers({0, 3, 8})}); });
  EXPECT_NE(documents.find("layer 2 is a Mamba-2"), std::string::npos) << documents;
  EXPECT_FALSE(model->caches());
  const at::NoGradGuard no_grad;
  KeyValueCache cache{.capacity = 8};
  const auto cached = refusal([&] { model->next_logits({rows, {}}, &cache); });
  EXPECT_NE(cached.find("Mamba-2"), std::string::npos) << cached;
  EXPECT_LT(
      difference(model->next_logits({rows, {}}), model->logits({rows, {}}).select(1, 7)), 1e-12);
}

}  // namespace
}  // namespace sherd
