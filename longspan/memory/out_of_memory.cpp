#include "longspan/memory/out_of_memory.h"

#include <c10/util/Exception.h>

#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

namespace longspan {
namespace {

/// True for the error of a thread that cannot start because there is no memory for its stack.
bool is_without_memory(const std::system_error& error) {
  return error.code() == std::errc::not_enough_memory ||
         error.code() == std::errc::resource_unavailable_try_again;
}

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) {
    return true;
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system != nullptr &&
      dynamic_cast<const std::filesystem::filesystem_error*>(&error) == nullptr &&
      is_without_memory(*system)) {
    return true;
  }
  const std::string what = error.what();
  // oneDNN has no better message for an allocation failure, and rarely fails so for another reason.
  if (what.starts_with("could not create a ")) return true;
  // torch's host allocators, plain and pinned, throw no exception type of their own, nor do cuBLAS
  // and cuDNN.
  if (dynamic_cast<const c10::Error*>(&error) == nullptr) return false;
  for (const char* phrase : {"can't allocate memory", "not enough memory",
                             "CUDA error: out of memory", "_ALLOC_FAILED", "_ALLOCATION_FAILED"}) {
    if (what.find(phrase) != std::string::npos) return true;
  }
  return false;
}

}  // namespace longspan
