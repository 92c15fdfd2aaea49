// The contents of a data set's row. No torch.
#pragma once

#include <stdexcept>

namespace longspan {

enum class RowKind {
  kText,                // a text (columns prompt, query)
  kAnswer,              // a conversation that ends with an answer
  kPair,                // a conversation that ends with a question; a chosen and a rejected answer
  kUnpairedPreference,  // a conversation that ends with an answer, and whether it is desirable
  kQuestion,            // a conversation that ends with a question, and the question's solution
};

/// Whether each document of an example gets its own row. An unpaired preference's second document
/// serves to estimate KL.
constexpr bool has_documents_apart(RowKind kind) { return kind == RowKind::kUnpairedPreference; }

/// The parts of a row that readers look for.
struct RowParts {
  bool text = false;          // only a text; else a conversation
  bool answer = false;        // the last message is the answer
  bool pair = false;          // two answers
  bool desirability = false;  // a mark whether the answer is desirable
};
constexpr RowParts parts_of(RowKind kind) {
  switch (kind) {
    case RowKind::kText:
      return {.text = true};
    case RowKind::kAnswer:
      return {.answer = true};
    case RowKind::kPair:
      return {.pair = true};
    case RowKind::kUnpairedPreference:
      return {.answer = true, .desirability = true};
    case RowKind::kQuestion:
      return {.answer = true};
  }
  throw std::logic_error("rows of no kind");
}

}  // namespace longspan
