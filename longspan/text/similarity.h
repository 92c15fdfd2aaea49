// BLEU and ROUGE between an answer and its reference. No torch. (Backed by the crates `jieba-rs`
// and `regex`, see rust/.)
#pragma once

#include <string_view>

namespace longspan {

/// In percent, rounded to four decimals.
struct Similarity {
  double rouge_1, rouge_2, rouge_l, bleu_4;
};

/// Returns the scores of LLaMA-Factory 0.9.5: F scores of rouge_chinese on jieba's words, and
/// nltk's sentence_bleu on characters with smoothing method 3. Thread-safe.
Similarity similarity(std::string_view answer, std::string_view reference);

}  // namespace longspan
