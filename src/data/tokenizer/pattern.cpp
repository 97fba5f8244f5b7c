// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <c10/util/Exception.h>
#include <pcre2.h>

#include <stdexcept>

#include "data/tokenizer/pattern_syntax.h"

namespace sherd {
namespace {

constexpr size_t kLongest = 1 << 16;                         // bytes of a pattern
constexpr uint32_t kSteps = 100'000'000;                     // of one search
constexpr uint32_t kKilobytes = 1 << 16;                     // of one search without JIT
constexpr size_t kStack = 1 << 15, kStackLargest = 1 << 24;  // bytes, with JIT

template <auto function>
struct Free {
  template <class T>
  void operator()(T* handle) const {
    function(handle);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

std::string reason(int error) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(error, text, sizeof(text)) < 0) {
    return "error " + std::to_string(error);
  }
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR letters(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

Code compile(const std::string& pattern, Pattern::Syntax syntax) {
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_max_pattern_length(context.get(), kLongest);
  uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK;
  options |= syntax == Pattern::Syntax::literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE;
  int error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(letters(pattern), pattern.size(), options, &error, &at, context.get()));
  if (!code) throw std::invalid_argument(reason(error));
  // Where there is no JIT, a match is slower and the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

}  // namespace

struct Pattern::State {
  std::string name;
  Code code;
  MatchContext context;
  MatchData data;
  JitStack stack;
};

Pattern::Pattern(const std::string& source, Syntax syntax, std::string name)
    : state_(std::make_unique<State>()) {
  state_->name = std::move(name);
  try {
    if (source.size() > kLongest) throw std::invalid_argument("it is too long");
    state_->code =
        compile(syntax == Syntax::oniguruma ? pcre_from_oniguruma(source) : source, syntax);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(
        false, "[tokenizer] ", state_->name, " = \"", source.substr(0, 200),
        "\": the pattern can't be used: ", error.what());
  }
  state_->context.reset(pcre2_match_context_create(nullptr));
  state_->data.reset(pcre2_match_data_create(1, nullptr));
  state_->stack.reset(pcre2_jit_stack_create(kStack, kStackLargest, nullptr));
  TORCH_CHECK(
      state_->context && state_->data, "[tokenizer] ", state_->name, ": there is no memory for it");
  pcre2_set_match_limit(state_->context.get(), kSteps);
  pcre2_set_heap_limit(state_->context.get(), kKilobytes);
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

std::optional<Pattern::Match> Pattern::find(std::string_view text, size_t from) {
  const int found = pcre2_match(
      state_->code.get(), letters(text), text.size(), from, PCRE2_NO_UTF_CHECK, state_->data.get(),
      state_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  TORCH_CHECK_VALUE(
      found >= 0, "[tokenizer] ", state_->name, ": the pattern fails at byte ", from,
      " of a text: ", reason(found), "; it is too costly for this text");
  const auto* places = pcre2_get_ovector_pointer(state_->data.get());
  // \K may put the begin after the end.
  TORCH_CHECK_VALUE(
      places[0] <= places[1] && places[0] >= from, "[tokenizer] ", state_->name,
      ": the pattern matches backwards at byte ", from);
  return Match{places[0], places[1]};
}

}  // namespace sherd
