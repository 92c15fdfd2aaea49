// The values that GPU memory keeps. Copies of at most kMostKept bytes from the host, such as flags
// and counts, can be read back. Copies of at most kMostSent bytes are kept for collectives, such as
// texts between ranks; the result of the collective can be read back once. Everything else reads as
// zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace null_cuda {

inline constexpr size_t kMostKept = 64;

inline constexpr size_t kMostSent = size_t{64} << 10;

/// Sets the values at these addresses. More than kMostSent bytes are not kept.
void keep(uintptr_t address, const void* bytes, size_t size);
void forget(uintptr_t address, size_t size);
/// Writes the values that the host may read from these addresses, and zeros elsewhere.
void fetch(uintptr_t address, void* bytes, size_t size);
/// Writes all known values.
void fetch_for_collective(uintptr_t address, void* bytes, size_t size);
/// Registers the result of a collective at these addresses. `finish` writes the result when the
/// result is first fetched.
void keep_result(uintptr_t address, size_t size, std::function<void(unsigned char*)> finish);

}  // namespace null_cuda
