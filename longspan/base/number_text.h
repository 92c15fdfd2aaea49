// Numbers in messages. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns the shortest text that reads back as the same number. NaN is "nan", with any sign bit.
std::string number_text(double number);

}  // namespace longspan
