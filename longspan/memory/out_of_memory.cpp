#include "longspan/memory/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

namespace longspan {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const std::string what = error.what();
  // oneDNN says no more when it gets no memory, and has hardly another reason.
  if (what.starts_with("could not create a ")) return true;
  // torch's allocators of host memory, plain and pinned, have no exception of their own.
  if (dynamic_cast<const c10::Error*>(&error) == nullptr) return false;
  for (const char* phrase :
       {"can't allocate memory", "not enough memory", "CUDA error: out of memory"}) {
    if (what.find(phrase) != std::string::npos) return true;
  }
  return false;
}

}  // namespace longspan
