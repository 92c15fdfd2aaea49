// A named template as a chat template in Jinja. No torch.
#pragma once

#include <string>

#include "longspan/data/template_format.h"
#include "longspan/data/turns.h"

namespace longspan {

/// A chat template that gives the prompts of training by a named template, as text. `bos` and
/// `eos`: the texts of these tokens.
std::string jinja_template(const Format& format, const std::string& bos, const std::string& eos,
                           const std::string& default_system, const Thinking& thinking);

}  // namespace longspan
