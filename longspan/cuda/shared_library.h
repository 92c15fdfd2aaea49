// Functions of libraries that are loaded when they are wanted. No torch.
#pragma once

#include <dlfcn.h>

#include <string>

namespace longspan::cuda {

/// Whether the library has this function, which is then in `function`.
template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// The folder of torch's libraries (.../torch/lib); empty where it cannot be seen.
std::string folder_of_torch();

}  // namespace longspan::cuda
