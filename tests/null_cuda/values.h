// The numbers that memory of a GPU keeps. What the host sends in at most kMostKept bytes, as flags
// and counts, comes back as it was. What it sends in at most kMostSent bytes is there for a
// collective, as the texts that ranks tell each other, and what the collective makes of it comes
// back once. All else is zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace null_cuda {

inline constexpr size_t kMostKept = 64;

inline constexpr size_t kMostSent = size_t{64} << 10;

/// What is at these addresses now. Of more than kMostSent bytes nothing is known.
void keep(uintptr_t address, const void* bytes, size_t size);
void forget(uintptr_t address, size_t size);
/// Writes what the host may know of these addresses, and zeros elsewhere.
void fetch(uintptr_t address, void* bytes, size_t size);
/// Writes all that is known of them.
void fetch_for_collective(uintptr_t address, void* bytes, size_t size);
/// What a collective makes there, which is known once somebody fetches it: `finish` writes it.
void keep_result(uintptr_t address, size_t size, std::function<void(unsigned char*)> finish);

}  // namespace null_cuda
