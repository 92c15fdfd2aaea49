// Shared objects of the program that are loaded at run time. No torch.
#pragma once

#include <string>

namespace longspan {

/// Returns the path of a shared object: in the build folder, or in the folder lib of the installed
/// package. "": there is none.
std::string program_library(const std::string& file_name);

/// Returns the path of the file that holds this code: the program, or the shared object of the
/// Python package. "": unknown.
std::string program_file();

}  // namespace longspan
