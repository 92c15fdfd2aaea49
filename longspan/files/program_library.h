// Shared objects of the program that are loaded at run time. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns the path of a shared object of the program: beside the program (build folder), or in
/// lib/ next to its folder (`pip install`). "": there is none.
std::string program_library(const std::string& file_name);

}  // namespace longspan
