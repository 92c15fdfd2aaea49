// Describes a sample as text, to show users the trained tokens. No torch.
#pragma once

#include <string>

#include "longspan/text/tokenizer.h"

namespace longspan {

struct Example;
struct Sample;

/// Returns several lines: numbers of tokens and of trained tokens, the decoded text, the decoded
/// trained text, the first ids and labels. Shortens long parts in the middle.
std::string describe_sample(const Sample& sample, const Tokenizer& tokenizer);

/// Describes the documents of an example (of a packed row, the first two documents). Headings name
/// the role of each document in the stage: chosen and rejected; the desirable or undesirable
/// answer, and the mismatched answer; ...
std::string describe_example(const Example& example, const std::string& stage,
                             const Tokenizer& tokenizer);

}  // namespace longspan
