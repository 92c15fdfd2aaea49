// Functions of libraries that are loaded on demand. No torch.
#pragma once

#include <dlfcn.h>

#include <string>

namespace longspan::cuda {

/// Looks the function up in the library, into `function`. Returns whether it exists.
template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// Returns the folder of torch's libraries (.../torch/lib); "" where it is unknown.
std::string folder_of_torch();

}  // namespace longspan::cuda
