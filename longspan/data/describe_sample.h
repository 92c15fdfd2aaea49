// Describes a sample in words, so that users see what is trained. No torch.
#pragma once

#include <string>

#include "longspan/text/tokenizer.h"

namespace longspan {

struct Example;
struct Sample;

/// Returns several lines: numbers of tokens and of trained tokens, the decoded text, the decoded
/// trained text, the first ids and labels. Shortens long parts in the middle.
std::string describe_sample(const Sample& sample, const Tokenizer& tokenizer);

/// The same for the documents of an example (the first two of a packed row). Headings name the role
/// of each document at this stage: chosen and rejected; the answer, good or bad, and the mismatched
/// answer; ...
std::string describe_example(const Example& example, const std::string& stage,
                             const Tokenizer& tokenizer);

}  // namespace longspan
