// What a row of a data set holds. No torch.
#pragma once

namespace longspan {

enum class RowKind {
  kText,     // a text (columns prompt, query)
  kAnswer,   // a conversation that ends with an answer
  kPair,     // a conversation that ends with a question; a chosen and a rejected answer
  kVerdict,  // a conversation that ends with an answer; whether that is good
};

}  // namespace longspan
