// The few numbers that memory of a GPU keeps: what the host sends in at most kMostKept bytes, as
// flags and counts, comes back as it was, and summed over ranks where they have begun to sum it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace null_cuda {

inline constexpr size_t kMostKept = 64;

/// What is at these addresses now. More than kMostKept bytes, or no bytes: nothing is known.
void keep(uintptr_t address, const void* bytes, size_t size);
void forget(uintptr_t address, size_t size);
/// Writes what is known of these addresses, and zeros elsewhere. Runs what finishes it first.
void fetch(uintptr_t address, void* bytes, size_t size);

/// The bytes at an address are whole only after this, which the first who fetches them runs. It
/// gets them, and changes them. False: nothing is known of the address.
bool finish_with(uintptr_t address, size_t size, std::function<void(unsigned char*)> finish);

}  // namespace null_cuda
