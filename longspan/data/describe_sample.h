// A sample in words, for people who want to see what is trained. No torch.
#pragma once

#include <string>

#include "longspan/text/tokenizer.h"

namespace longspan {

struct Example;
struct Sample;

/// Several lines: number of tokens and of trained tokens, the decoded text, the decoded trained
/// text, the first ids and labels. Long parts are shortened in the middle.
std::string describe_sample(const Sample& sample, const Tokenizer& tokenizer);

/// The same for the documents of an example (of a packed row the first two), under headings that
/// say what they are at this stage: chosen and rejected, the answer with its verdict and the
/// mismatched one, ...
std::string describe_example(const Example& example, const std::string& stage,
                             const Tokenizer& tokenizer);

}  // namespace longspan
