// What a row of a data set holds. No torch.
#pragma once

#include <stdexcept>

namespace longspan {

enum class RowKind {
  kText,     // a text (columns prompt, query)
  kAnswer,   // a conversation that ends with an answer
  kPair,     // a conversation that ends with a question; a chosen and a rejected answer
  kVerdict,  // a conversation that ends with an answer; whether that is good
};

/// Are the documents of an example in rows of their own? An answer's second one is for KL.
constexpr bool has_documents_apart(RowKind kind) { return kind == RowKind::kVerdict; }

/// What readers of such rows look for.
struct RowParts {
  bool text = false;     // nothing but a text; else a conversation
  bool answer = false;   // its last message is the answer
  bool pair = false;     // two answers to it
  bool verdict = false;  // whether its answer is good
};
constexpr RowParts parts_of(RowKind kind) {
  switch (kind) {
    case RowKind::kText:
      return {.text = true};
    case RowKind::kAnswer:
      return {.answer = true};
    case RowKind::kPair:
      return {.pair = true};
    case RowKind::kVerdict:
      return {.answer = true, .verdict = true};
  }
  throw std::logic_error("rows of no kind");
}

}  // namespace longspan
