// A sample in words, for people who want to see what is trained. No torch.
#pragma once

#include <string>

#include "longspan/data/batch.h"
#include "longspan/text/tokenizer.h"

namespace longspan {

/// Several lines: number of tokens and of trained tokens, the decoded text, the decoded trained
/// text, the first ids and labels. Long parts are shortened in the middle.
std::string describe_sample(const Sample& sample, const Tokenizer& tokenizer);

}  // namespace longspan
