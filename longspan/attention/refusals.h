// Refusals of attention libraries: their errors that are neither lack of memory nor errors of the
// GPU by their text. A library that lacks memory outside torch's allocator may tell no cause.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>

namespace longspan {

/// True for an error that may mean that a library does not compute a call. False for out-of-memory,
/// and for errors of the GPU: an earlier kernel may have caused them, and no kernel can run after
/// them.
bool is_refusal(const std::exception& error);
/// Returns the first line of the message.
std::string reason_of(const std::exception& error);

/// Returns a GPU's unused memory from torch's allocator to the driver. Nothing on a CPU.
void empty_cache(at::Device device);
/// True if so little memory of a GPU is free that a driver may fail to load a kernel.
bool is_short_of_memory(at::Device device);

/// Returns call(). Where it refuses, empties the cache and calls it once more.
template <typename Call>
auto with_second_try(at::Device device, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
  }
  empty_cache(device);
  return call();
}

}  // namespace longspan
