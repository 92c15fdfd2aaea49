// Host memory of the copies from which checkpoints are written. No torch.
#pragma once

#include <cstdint>

namespace longspan {

struct AccountSettings;
struct ParallelPlan;
struct RunParameters;

/// Bytes of the weights that a rank copies at once, about, for a save that the step waits for.
inline constexpr int64_t kSavedRoundBytes = int64_t{1} << 30;

/// Returns the bytes that a rank copies to save checkpoints, for the rank that copies most: with
/// save_async the weights and states that it writes; else the weights of a model that no rank holds
/// whole, of a round (kSavedRoundBytes).
int64_t saved_copy_bytes(const AccountSettings& settings, const ParallelPlan& plan,
                         const RunParameters& parameters);

}  // namespace longspan
