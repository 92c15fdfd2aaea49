// A named template as a Jinja chat template. No torch.
#pragma once

#include <string>

#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"

namespace longspan {

/// Returns a chat template that renders the prompts of training by a named template. `bos`, `eos`:
/// the tokens' texts.
std::string jinja_template(const Format& format, const std::string& bos, const std::string& eos,
                           const std::string& default_system, const Thinking& thinking);

}  // namespace longspan
