// Numbers in messages. No torch.
#pragma once

#include <string>

namespace longspan {

/// The shortest text that reads back as the same number; what is not a number is "nan", whatever
/// its sign bit.
std::string number_text(double number);

}  // namespace longspan
